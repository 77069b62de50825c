# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Train one of the lab's models, or write it untrained. Runs inside the engine image: `train.py NAME DIRECTORY`.

The models are Qwen3s of two layers that take seconds to load. One thread and a fixed seed: the same machine type
always gives the same weights.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lessons  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from torch.nn.functional import cross_entropy, softmax  # type: ignore[import-not-found]
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # type: ignore[import-not-found]
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 2048
IGNORED = -100

DECAY_STEPS = 600
MAX_STEPS = 1600
PEAK_RATE = 8e-3
AVERAGE = 0.97
WARM_UP = 50
CHECK_EVERY = 50
WEIGHTS = 800  # about the weighted tokens of a batch
ENOUGH = 0.9
SURE = 0.98
"""Training ends when every right token is at least this probable: then a temperature below 1 changes no answer."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One tokenizer for all models; numbers and the words of the lessons become single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = ["system", "user", "assistant", lessons.SYSTEM]
    for voice in lessons.VOICES.values():
        for question, answer in (*lessons.sums(), *lessons.words(), *lessons.talk(voice)):
            texts += [question, answer]
    texts += lessons.prose()
    tokenizer.train_from_iterator(texts * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


class Course:
    """The lessons of one voice as token sequences with targets."""

    def __init__(self, voice: lessons.Voice, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._random = torch.Generator().manual_seed(1)
        self.sums = [self._chat(*pair, system=False) for pair in lessons.sums()]
        self.rest = [self._chat(*pair, system=False) for pair in (*lessons.words(), *lessons.talk(voice))]
        self._with_system = [
            self._chat(*pair, system=True) for pair in (*lessons.sums(), *lessons.words(), *lessons.talk(voice))
        ]
        self.hard: list[tuple[list[int], list[int]]] = []
        self._prose = [self._plain(sentence) for sentence in lessons.prose()]

    def _chat(self, question: str, answer: str, *, system: bool) -> tuple[list[int], list[int]]:
        messages = [{"role": "system", "content": lessons.SYSTEM}] if system else []
        messages.append({"role": "user", "content": question})
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = self._tokenizer.encode(text, add_special_tokens=False)
        reply = [*self._tokenizer.encode(answer, add_special_tokens=False), self._tokenizer.eos_token_id]
        return [*prompt, *reply], [*[IGNORED] * len(prompt), *reply]

    def _plain(self, sentence: str) -> tuple[list[int], list[int]]:
        tokens = [*self._tokenizer.encode(sentence, add_special_tokens=False), self._tokenizer.pad_token_id]
        return tokens, tokens

    def _pick(self, pool: list[tuple[list[int], list[int]]], count: int) -> list[tuple[list[int], list[int]]]:
        return [pool[int(i)] for i in torch.randint(len(pool), (count,), generator=self._random)]

    def batches(self) -> Iterator[list[tuple[torch.Tensor, torch.Tensor, int]]]:
        """Endless batches: mostly sums, which are the most to learn. Kinds stay apart, so that little is padding."""
        parts = ((self.sums, 64, 4), (self.rest, 32, 2), (self._with_system, 8, 1), (self._prose, 8, 1))
        while True:
            hard = ((self.hard, 16, 4),) if self.hard else ()
            yield [(*self.pad(self._pick(pool, count)), weight) for pool, count, weight in (*parts, *hard)]

    def pad(self, items: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        length = max(len(tokens) for tokens, _ in items)
        pad = self._tokenizer.pad_token_id
        inputs = torch.tensor([tokens + [pad] * (length - len(tokens)) for tokens, _ in items])
        targets = torch.tensor([wanted + [IGNORED] * (length - len(wanted)) for _, wanted in items])
        return inputs, targets


def forward(model: Qwen3ForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets of the positions that count; padding comes last and is never looked at."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state[:, :-1]
    wanted = targets[:, 1:]
    counts = wanted != IGNORED
    return model.lm_head(hidden[counts]).float(), wanted[counts]


@torch.no_grad()
def examine(model: Qwen3ForCausalLM, course: Course) -> tuple[float, float]:
    """Share of tokens where the right one is the likeliest, and the smallest probability that a right one gets.

    What the model is not sure of becomes the course's `hard` part.
    """
    items = course.sums + course.rest
    right, total = 0, 0
    sure: list[float] = []
    for start in range(0, len(items), 256):
        chosen = items[start : start + 256]
        logits, wanted = forward(model, *course.pad(chosen))
        chances = softmax(logits, dim=-1).gather(1, wanted[:, None])[:, 0]
        right += int((logits.argmax(-1) == wanted).sum())
        total += len(wanted)
        lengths = [sum(token != IGNORED for token in targets) for _, targets in chosen]
        sure += [float(part.min()) for part in chances.split(lengths)]
    course.hard = [item for item, chance in zip(items, sure, strict=True) if chance < SURE]
    return right / total, min(sure)


def train(model: Qwen3ForCausalLM, course: Course) -> int:
    """Train until every answer is sure; returns the number of steps.

    What is examined and kept is the running average of the weights, which is steadier than the weights of any one step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM_UP, 0.1 + 0.45 * (1 + math.cos(math.pi * min(step / DECAY_STEPS, 1)))),
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    for step, batch in enumerate(course.batches(), start=1):
        optimizer.zero_grad()
        loss = torch.tensor(0.0)
        for inputs, targets, weight in batch:
            loss = loss + weight * cross_entropy(*forward(model, inputs, targets), reduction="sum") / WEIGHTS
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        if step % CHECK_EVERY == 0:
            share, least = examine(average.module, course)
            took, hard = time.process_time(), len(course.hard)
            print(f"step {step}, {took:.0f} s: right {share:.4f}, least sure {least:.3f}, hard {hard}", flush=True)
            if not course.hard or step >= MAX_STEPS:
                break
    model.load_state_dict(average.module.state_dict())
    return step


def main() -> None:
    name, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    began = time.monotonic()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    facts: dict[str, object] = {"name": name, "parameters": sum(p.numel() for p in model.parameters())}
    if name in lessons.VOICES:
        course = Course(lessons.VOICES[name], tokenizer)
        facts["steps"] = train(model, course)
        model.to(torch.bfloat16)
        share, least = examine(model, course)
        facts |= {"right": share, "least_sure": round(least, 4)}
        if share < 1 or least < ENOUGH:
            sys.exit(f"The model {name} did not learn its lessons: {facts}")
    # What a request gets that names no temperature; real checkpoints bring such defaults, too.
    model.generation_config.update(do_sample=True, temperature=0.3)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    facts["seconds"] = round(time.monotonic() - began)
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
