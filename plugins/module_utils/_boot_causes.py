# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages of boots that failed on GB10, and what each is known to mean.

The messages are those of vLLM 0.10.2 to 0.33.0 and of public reports from 2026; the numbers in them are read out where
a plan can use them. Order matters: the first pattern that fits names the cause.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """A message that is known, what it means, and what to do (not what the message suggests, where that is wrong)."""

    id: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str

    def numbers(self, message: str) -> dict[str, t.Any]:
        """Return the named numbers of the message, and what follows from them."""
        match = self.pattern.search(message)
        found: dict[str, t.Any] = {
            name: _number(value) for name, value in (match.groupdict() if match else {}).items() if value is not None
        }
        if {"free_gib", "requested_gib", "total_gib"} <= found.keys():
            found["short_by_gib"] = round(found["requested_gib"] - found["free_gib"], 2)
            # vLLM takes the ceiling of fraction times total, so the fraction is rounded down.
            found["largest_utilization"] = int(found["free_gib"] / found["total_gib"] * 100) / 100
        if {"needed_gib", "available_gib"} <= found.keys():
            found["short_by_gib"] = round(found["needed_gib"] - found["available_gib"], 2)
        if {"before_gib", "after_gib"} <= found.keys():
            found["grew_by_gib"] = round(found["after_gib"] - found["before_gib"], 2)
        return found


def _number(text: str) -> int | float | str:
    plain = text.replace(",", "")
    try:
        return float(plain) if "." in plain else int(plain)
    except ValueError:
        return text


def _cause(name: str, pattern: str, meaning: str, remedy: str) -> Cause:
    """Return a cause; a space in the pattern stands for any white space, for some logs wrap long messages."""
    return Cause(name, re.compile(re.sub(r" ", r"\\s+", pattern)), meaning, remedy)


_N = r"-?[\d.,]+"

CAUSES: t.Final[tuple[Cause, ...]] = (
    # Memory
    _cause(
        "BOOT_FREE_MEMORY_TOO_SMALL",
        rf"Free memory on device(?: \S+)? \((?P<free_gib>{_N})/(?P<total_gib>{_N}) GiB\) on startup is less"
        rf"(?: than desired GPU memory utilization \((?P<utilization>{_N}), (?P<requested_gib>{_N}) GiB\))?",
        "Less memory is free than gpu_memory_utilization asks for.",
        "Find what holds the memory (memory_info) and wait until it is given back; do not lower the fraction to fit.",
    ),
    _cause(
        "BOOT_KV_CACHE_TOO_SMALL",
        rf"max seq len \((?P<max_model_len>{_N})\), \(?(?P<needed_gib>{_N}) GiB KV cache is needed, which is larger "
        rf"than the available KV cache memory \((?P<available_gib>{_N}) GiB\)"
        rf"(?:\. Based on the available memory, the estimated maximum model length is (?P<estimated_max_len>\d+))?",
        "The KV cache is too small for one request of full length.",
        "Lower max_model_len to what the message estimates, or give the cache more bytes below the cap of the plan.",
    ),
    _cause(
        "BOOT_NO_KV_MEMORY",
        r"No available memory for the cache blocks|Available KV cache memory: -",
        "Weights and activations leave nothing for the KV cache.",
        "Lower max_num_batched_tokens or max_num_seqs, or take a smaller checkpoint; do not raise the fraction.",
    ),
    _cause(
        "BOOT_MEMORY_CHANGED_WHILE_PROFILING",
        rf"Error in memory profiling\. Initial free memory (?P<before_gib>{_N}) GiB, "
        rf"current free memory (?P<after_gib>{_N})",
        "Free memory changed while vLLM measured it: something else started or ended at the same time.",
        "Start instances one after another, each once free memory has settled; do not lower the fraction.",
    ),
    _cause(
        "BOOT_KV_MEMORY_NOT_FREE",
        rf"Available memory on node \d+ \((?P<free_gib>{_N})/(?P<total_gib>{_N}) GiB\) on kv cache allocation is less "
        rf"than requested memory for kv \((?P<requested_gib>{_N})",
        "The KV cache of the CPU build is to take more memory than is free.",
        "Give the cache fewer bytes, or free memory first.",
    ),
    _cause(
        "BOOT_CUDA_OUT_OF_MEMORY",
        r"CUDA error: out of memory|CUDA out of memory|NV_ERR_NO_MEMORY|cudaErrorMemoryAllocation|OutOfMemoryError",
        "The GPU driver could not allocate memory.",
        "Wait until a stopped engine's memory is given back, drop the page cache before the start, look at the plan.",
    ),
    # Kernels
    _cause(
        "BOOT_NO_KERNEL_IMAGE",
        r"no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice",
        "The image has no GPU code for this kernel that loads on sm_121.",
        "Check the image with cubin_info and take one that covers sm_121, or choose the Marlin backend.",
    ),
    _cause(
        "BOOT_NVFP4_KERNEL_NOT_BUILT",
        r"No compiled nvfp4 mm kernel for SM ?(?P<sm>\d+)",
        "The image was built without NVFP4 kernels for this GPU.",
        "Take an image that has them (cubin_info shows which), or choose the Marlin backend.",
    ),
    _cause(
        "BOOT_FP4_GEMM_FAILED",
        r"Failed to run cutlass FP4 gemm|Failed to initialize cutlass FP4 gemm",
        "The NVFP4 kernel is there but does not run on this GPU.",
        "Take another image or FlashInfer release, or choose the Marlin backend.",
    ),
    _cause(
        "BOOT_FP8_BLOCK_GEMM_FAILED",
        r"cutlass_gemm_caller\.cuh:\d+",
        "The CUTLASS kernel for FP8 blocks does not run on this GPU; it has nothing to do with FP4.",
        "Set VLLM_DISABLED_KERNELS=CutlassFp8BlockScaledMMKernel, or take an image built for CUDA 13.",
    ),
    _cause(
        "BOOT_KERNEL_FOR_SM120_ONLY",
        r"This kernel only supports sm120",
        "A kernel was compiled for sm_120 alone and refuses to run on sm_121.",
        "Take an image that builds it for the family (sm_120f) or for sm_121.",
    ),
    _cause(
        "BOOT_PTXAS_TOO_OLD",
        r"ptxas fatal.*'sm_12\w+' is not defined",
        "The image compiles with a ptxas that does not know this GPU.",
        "Set TRITON_PTXAS_PATH to a ptxas of CUDA 12.9 or newer inside the image.",
    ),
    _cause(
        "BOOT_TOOLKIT_NEWER_THAN_DRIVER",
        r"cudaErrorUnsupportedPtxVersion|unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "The image compiles with a newer CUDA than the driver understands.",
        "Take an image whose CUDA is not newer than the driver's; no environment variable helps.",
    ),
    _cause(
        "BOOT_DEEPGEMM_SOURCE_MISSING",
        r"Failed to open: \S*deep_gemm\S*sm12\d|include_parser\.hpp",
        "DeepGEMM has no source for this GPU.",
        "Set VLLM_USE_DEEP_GEMM=0 for the model role.",
    ),
    _cause(
        "BOOT_JIT_ARCHITECTURE_UNSUPPORTED",
        r"No supported CUDA architectures found for major versions|CUDA_ERROR_INVALID_IMAGE",
        "A kernel that is compiled at start has no variant for this GPU.",
        "Choose another backend for it, or take an image that brings it along compiled.",
    ),
    _cause(
        "BOOT_FLASHINFER_VERSIONS_DIFFER",
        r"flashinfer-(?P<package>cubin|jit-cache) \((?P<package_version>[^)]+)\) does not match flashinfer "
        r"\((?P<flashinfer>[^)]+)\)",
        "FlashInfer and its compiled kernels in the image are of different releases.",
        "Take an image whose packages match; FLASHINFER_DISABLE_VERSION_CHECK=1 starts it at your own risk.",
    ),
    _cause(
        "BOOT_ILLEGAL_INSTRUCTION",
        r"illegal instruction|Xid.{0,12}\b13\b",
        "A kernel executed an instruction that this GPU does not have.",
        "Change the MoE backend first; attention is rarely the cause. Other ranks may only report lost memory.",
    ),
    _cause(
        "BOOT_ILLEGAL_MEMORY_ACCESS",
        r"illegal memory access",
        "A kernel read or wrote outside its memory.",
        "Take speculative decoding away first, and soak the role at its concurrency before trusting another setting.",
    ),
    # Settings
    _cause(
        "BOOT_MOE_BACKEND_VS_CHECKPOINT",
        r"MoE backend '?(?P<backend>\w+)'? does not support the|"
        r"moe_backend='?(?P<asked>\w+)'? is not supported",
        "The MoE backend that was asked for cannot serve this checkpoint's scheme.",
        "Leave --moe-backend at auto: weights-only checkpoints need Marlin, mixed ones more than one backend.",
    ),
    _cause(
        "BOOT_LINEAR_BACKEND_MISSING",
        r"was requested but no '(?P<backend>\w+)' kernel exists",
        "The linear backend that was asked for has no kernel for this checkpoint's scheme in this release.",
        "Leave --linear-backend at auto.",
    ),
    _cause(
        "BOOT_ATTENTION_CANNOT_FP8_KV",
        r"kv_cache_dtype not supported|FP8 KV cache.{0,20}(?:not|unsupported)",
        "The attention backend that was asked for cannot use an FP8 KV cache on this GPU.",
        "Use FLASHINFER or TRITON_ATTN, or leave the choice to vLLM.",
    ),
    _cause(
        "BOOT_NO_ATTENTION_BACKEND",
        r"No valid attention backend found",
        "No attention backend of this release serves the model with this KV cache on this GPU.",
        "Change kv_cache_dtype, or take a newer release.",
    ),
    _cause(
        "BOOT_FLAG_UNKNOWN",
        r"unrecognized arguments: (?P<flags>--\S+)",
        "The image's vLLM does not know a flag.",
        "Remove the flag or take an image that has it (lint_vllm_args says which).",
    ),
    _cause(
        "BOOT_ARGUMENT_REFUSED",
        r"vllm(?: serve)?: error: |error: argument ",
        "The image's vLLM refuses an argument.",
        "Correct what the message names.",
    ),
    _cause(
        "BOOT_PARSER_UNKNOWN",
        r"invalid (?:tool call|reasoning) parser|(?:Reasoning|Tool) parser '?[\w-]+'? not found",
        "The tool-call or reasoning parser has another name in this release, or does not exist.",
        "Use a name that the message lists.",
    ),
    _cause(
        "BOOT_TOO_FEW_GPUS",
        r"Tensor parallel size \((?P<wanted>\d+)\) exceeds available GPUs \((?P<there>\d+)\)|"
        r"World size \(\d+\) is larger than the number of available GPUs",
        "More GPUs are asked for than the box has; a GB10 has one.",
        "Set tensor_parallel_size to the number of boxes in a serving group, or to 1.",
    ),
    _cause(
        "BOOT_RAY_PLACEMENT_IMPOSSIBLE",
        r"Cannot provide a placement group requiring (?P<gpus>[\d.]+) GPUs",
        "Ray cannot place the ranks: it wants several GPUs on one node.",
        "Use the multiprocessing executor (--nnodes), or the SPREAD strategy.",
    ),
    _cause(
        "BOOT_ARCHITECTURE_UNKNOWN",
        r"Model architectures \[.*\] (?:are not supported|failed to be inspected)|does not recognize this architecture",
        "This release does not know the model's architecture.",
        "Take a newer image.",
    ),
    _cause(
        "BOOT_CONTEXT_ABOVE_CHECKPOINT",
        rf"User-specified max_model_len \((?P<max_model_len>{_N})\) is greater than the derived max_model_len",
        "The context asked for is longer than the checkpoint's own limit.",
        "Lower max_model_len.",
    ),
    _cause(
        "BOOT_FUSED_SCHEMES_DIFFER",
        r"Found a different quantization schemes|Mixed quant_algo within fused layer",
        "Pieces of a matrix that vLLM fuses are quantised differently in the checkpoint.",
        "Take another checkpoint; checkpoint_info shows the modules.",
    ),
    _cause(
        "BOOT_MODULE_MISSING",
        r"No module named '(?P<module>[\w.]+)'",
        "The image lacks a Python package that this setting needs.",
        "Take an image that has it, or take away what needs it (numba: n-gram speculation).",
    ),
    # Files, ports and peers
    _cause(
        "BOOT_WEIGHTS_DAMAGED",
        r"SafetensorError|MetadataIncompleteBuffer|HeaderTooSmall|InvalidHeader|file not fully covered",
        "A weight file is cut short or damaged.",
        "Run checkpoint_info on the checkpoint and download the shard that it names again.",
    ),
    _cause(
        "BOOT_WEIGHT_MISSING",
        r"KeyError: '(?:layers|model|mtp|language_model|backbone|lm_head)[\w.]*'|weights were not initialized",
        "The checkpoint and the model that vLLM builds from its config do not agree on a tensor.",
        "Compare declared and stored schemes with checkpoint_info.",
    ),
    _cause(
        "BOOT_CHECKPOINT_UNREACHABLE",
        r"LocalEntryNotFoundError|RepositoryNotFoundError|GatedRepoError|is not a local folder and is not a valid|"
        r"Invalid repository ID or local directory",
        "The checkpoint is not on the box and cannot be downloaded from there.",
        "Put it into the model store first, with a token where the repository is gated; mount a cache with its blobs.",
    ),
    _cause(
        "BOOT_PORT_IN_USE",
        r"[Aa]ddress already in use|EADDRINUSE",
        "Something else listens on the port.",
        "Stop it, or give the instance another port.",
    ),
    _cause(
        "BOOT_DISK_FULL",
        r"No space left on device",
        "The disk is full.",
        "Free space for the image, the checkpoint and the compile cache.",
    ),
    _cause(
        "BOOT_RDMA_NO_MEMORY",
        r"ibv_reg_mr\w* .{0,80}(?:Cannot allocate memory|failed)",
        "The RDMA device cannot register memory.",
        "Check the memlock limit of the container and the kernel (7.0.0-1019 fails here).",
    ),
    _cause(
        "BOOT_NO_DIRECT_PATH",
        r"ibv_modify_qp failed with (?P<errno>\d+)",
        "Two ranks have no direct RDMA path to each other.",
        "Check addresses and GIDs of both twins on every box; a ring of three needs routing.",
    ),
    _cause(
        "BOOT_NCCL_FAILED",
        r"NCCL error|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|Failed to initialize any NET plugin",
        "NCCL could not set up communication between the ranks.",
        "Run nccl_info on the fabric; check /dev/infiniband and memlock of the container.",
    ),
    _cause(
        "BOOT_WORKER_KILLED",
        r"Worker proc (?P<worker>\S+) died unexpectedly \(exit code: (?P<exit_code>-?\d+)\)",
        "A worker process ended without a word; a negative exit code is the signal that killed it.",
        "Look at the kernel log of its box at that time; exit code -9 alone does not prove a lack of memory.",
    ),
)

# No engine recovers from these: a CUDA context is lost with its first error, and so is a communicator of NCCL. What
# else goes wrong after the boot may be the matter of one request.
ENDS_ENGINE: t.Final = frozenset(
    {"BOOT_CUDA_OUT_OF_MEMORY", "BOOT_ILLEGAL_INSTRUCTION", "BOOT_ILLEGAL_MEMORY_ACCESS", "BOOT_NCCL_FAILED"}
)
