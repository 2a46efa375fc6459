"""A resources server of nemo-gym. Arguments: its module, its class, a port."""

import sys
from importlib import import_module

import uvicorn
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

HOST = "127.0.0.1"

module, name, port = sys.argv[1:]
kind = getattr(import_module(module), name)
place = {"host": HOST, "port": int(port)}
config = kind.model_fields["config"].annotation(name="resources", entrypoint="", **place)
client = ServerClient(head_server_config=place, global_config_dict=OmegaConf.create({}))
uvicorn.run(kind(config=config, server_client=client).setup_webserver(), **place)
