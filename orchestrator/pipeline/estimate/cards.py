"""GPUs by name with data-sheet figures, and the hardware that `--gpus 8xH100-80G` names.

Memory is in MiB as in nvidia-smi. Peaks are dense bfloat16 with float32 sums. Bandwidths belong to the GPU's memory. Links
are one direction to other GPUs of the machine: NVLink, Infinity Fabric, or PCIe. Sources are NVIDIA's data sheets: V100
(SXM, 2018), T4 (2019), A100 (2021), A10 (2021), L4 (2023), L40S (2023), H100 (SXM, 2023), H200 (SXM, 2024), HGX B200
(2025), the architecture white papers GA102 (2021), Ada (2022) and RTX Blackwell (2025) and the specifications of GeForce
cards, and AMD's data sheet of MI300X (2023). T4 and V100 have no bfloat16: their peaks are float16.
"""

import re
import shutil
from dataclasses import dataclass
from difflib import get_close_matches

from temper.orchestrator.cluster.machines import SHM, Hardware, Machine

FORM = re.compile(r"(?:(\d+)x)?(\d+)x([A-Za-z0-9-]+)")
CORES_PER_GPU = 8
"""CPU cores of a named machine per GPU. Only the profile's threads depend on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A kind of GPU."""

    name: str
    memory_mib: int
    peak_tflops: float
    """Of bfloat16."""
    bandwidth_gbs: float
    link_gbs: float
    has_cuda_13: bool = True
    """Whether the GPU stack of `make setup` runs on it: NVIDIA's cards from Turing on."""
    has_bfloat16: bool = True


CARDS = (
    Card(name="RTX3060-12G", memory_mib=12288, peak_tflops=25.5, bandwidth_gbs=360, link_gbs=32),
    Card(name="T4-16G", memory_mib=15360, peak_tflops=65, bandwidth_gbs=300, link_gbs=16, has_bfloat16=False),
    Card(name="V100-16G", memory_mib=16384, peak_tflops=125, bandwidth_gbs=900, link_gbs=150, has_cuda_13=False),
    Card(name="RTX4060Ti-16G", memory_mib=16380, peak_tflops=44.1, bandwidth_gbs=288, link_gbs=16),
    Card(name="RTX4080-16G", memory_mib=16376, peak_tflops=97.5, bandwidth_gbs=716.8, link_gbs=32),
    Card(name="L4-24G", memory_mib=23034, peak_tflops=121, bandwidth_gbs=300, link_gbs=32),
    Card(name="A10-24G", memory_mib=23028, peak_tflops=125, bandwidth_gbs=600, link_gbs=32),
    Card(name="RTX3090-24G", memory_mib=24576, peak_tflops=71, bandwidth_gbs=936, link_gbs=32),
    Card(name="RTX4090-24G", memory_mib=24564, peak_tflops=165.2, bandwidth_gbs=1008, link_gbs=32),
    Card(name="V100-32G", memory_mib=32768, peak_tflops=125, bandwidth_gbs=900, link_gbs=150, has_cuda_13=False),
    Card(name="RTX5090-32G", memory_mib=32607, peak_tflops=209.5, bandwidth_gbs=1792, link_gbs=64),
    Card(name="A100-40G", memory_mib=40960, peak_tflops=312, bandwidth_gbs=1555, link_gbs=300),
    Card(name="L40S-48G", memory_mib=46068, peak_tflops=362, bandwidth_gbs=864, link_gbs=32),
    Card(name="A100-80G", memory_mib=81920, peak_tflops=312, bandwidth_gbs=2039, link_gbs=300),
    Card(name="H100-80G", memory_mib=81559, peak_tflops=989.4, bandwidth_gbs=3350, link_gbs=450),
    Card(name="H200-141G", memory_mib=143771, peak_tflops=989.4, bandwidth_gbs=4800, link_gbs=450),
    Card(name="B200-180G", memory_mib=183359, peak_tflops=2250, bandwidth_gbs=7700, link_gbs=900),
    Card(
        name="MI300X-192G", memory_mib=196608, peak_tflops=1307.4, bandwidth_gbs=5300, link_gbs=448, has_cuda_13=False
    ),
)


def nearest_card(gib: float) -> Card:
    """Return the card whose memory is nearest, for the speed of GPUs without a name."""
    return min((card for card in CARDS if card.has_cuda_13), key=lambda card: abs(card.memory_mib / 1024 - gib))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The machines of a plan, and the kind of their GPUs if it is known."""

    hardware: Hardware
    card: Card | None
    shm_bytes: int | None
    """Size of /dev/shm of each machine. None if unknown."""
    named: bool = False
    """Whether it was named, not found."""


def found_site(hardware: Hardware) -> Site:
    """Return detected hardware. Each machine gets the /dev/shm size of this machine."""
    return Site(hardware=hardware, card=None, shm_bytes=shutil.disk_usage(SHM).total if SHM.is_dir() else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGpus:
    """The machines of a text such as `2x8xH100-80G`."""

    machines: int
    count: int
    """GPUs of a machine."""
    gib: float
    card: Card | None
    """None for any GPU of this memory, whose speed is unknown."""


def parse_gpus(text: str) -> NamedGpus:
    """Read `8xH100-80G`, `2x8xH100-80G` for two machines, or `1x12G` for any GPU of 12 GiB.

    A name without its memory is the smallest GPU of this name. Raise `ValueError` for any other text.
    """
    found = FORM.fullmatch(text)
    if found is None or not int(found[1] or 1) or not int(found[2]):
        raise ValueError(
            f"--gpus {text}: give number and name, such as 8xH100-80G, 2x8xH100-80G for two machines, or 1x12G"
        )
    machines, count, name = int(found[1] or 1), int(found[2]), found[3].lower()
    card = next((card for card in CARDS if name in (card.name.lower(), card.name.lower().partition("-")[0])), None)
    any_card = re.fullmatch(r"(\d+)g", name)
    if card is None and any_card is None:
        names = [each.name for each in CARDS]
        near = get_close_matches(found[3].upper(), names, n=3)
        raise ValueError(
            f"--gpus {text}: {found[3]} is unknown. Give its memory, such as {count}x24G, or one of "
            f"{', '.join(near or names)}"
        )
    gib = card.memory_mib / 1024 if card is not None else float(any_card[1] if any_card else 0)
    return NamedGpus(machines=machines, count=count, gib=gib, card=card)


def named_site(text: str, *, host_gib_per_gpu: float, shm_gib: float) -> Site:
    """Return the machines of a text. Raise as `parse_gpus`."""
    named = parse_gpus(text)
    memory = named.count * host_gib_per_gpu
    one = Machine(gpus=named.count, gpu_gib=named.gib, memory_gib=memory, cpus=CORES_PER_GPU * named.count)
    hardware = Hardware(machines=(one,) * named.machines)
    return Site(hardware=hardware, card=named.card, shm_bytes=int(shm_gib * 2**30), named=True)
