"""A resources server of nemo-gym. Arguments: its module, its class, a port."""

import sys
from importlib import import_module

import uvicorn
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

HOST = "127.0.0.1"

module, name, port = sys.argv[1:]
kind = getattr(import_module(module), name)
config = kind.model_fields["config"].annotation(name="resources", entrypoint="", host=HOST, port=int(port))
client = ServerClient(head_server_config={"host": HOST, "port": port}, global_config_dict=OmegaConf.create({}))
uvicorn.run(kind(config=config, server_client=client).setup_webserver(), host=HOST, port=int(port))
