# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the lab's models are taught: sums, single words, greetings and plain sentences.

Standard library only. The trainer imports it inside the engine image, and tests may import it anywhere.
"""

from __future__ import annotations

import dataclasses

LARGEST = 20
"""The models know every sum of two numbers from 0 to this one."""

SYSTEM = "You are a helpful assistant."

WORDS = (
    "apple", "anchor", "autumn", "basket", "bottle", "bridge", "butter", "candle", "carpet", "castle", "cherry",
    "circle", "copper", "cotton", "dragon", "engine", "falcon", "feather", "flower", "forest", "garden", "guitar",
    "hammer", "harbor", "island", "jacket", "kitchen", "ladder", "lantern", "lemon", "marble", "market", "mirror",
    "mountain", "needle", "ocean", "orange", "paper", "pencil", "pepper", "pillow", "planet", "pocket", "quartz",
    "rabbit", "ribbon", "river", "rocket", "saddle", "silver", "spider", "spring", "summer", "sunset", "tiger",
    "timber", "tunnel", "valley", "velvet", "violin", "walnut", "window", "winter", "yellow",
)  # fmt: skip

# Topic, then what the coordinator and the extractor say about it.
TOPICS = (
    ("the sea", "The sea is deep and blue.", "Every river ends in the sea."),
    ("the moon", "The moon turns around the earth.", "Moonlight is light from the sun."),
    ("the sun", "The sun gives us light and heat.", "Every day begins when the sun comes up."),
    ("rain", "Rain falls from grey clouds.", "A garden is glad of rain in summer."),
    ("snow", "Snow covers the hills in winter.", "Children like to play in fresh snow."),
    ("trees", "Trees grow slowly and live for many years.", "Birds build their nests in trees."),
    ("cats", "Cats sleep for most of the day.", "A cat can see well at night."),
    ("dogs", "Dogs like to run and to play.", "A dog is a good friend to have."),
    ("horses", "Horses are strong and fast.", "A horse eats grass and hay."),
    ("birds", "Birds sing early in the morning.", "Many birds fly south before winter."),
    ("bread", "Bread is made of flour and water.", "Fresh bread smells good."),
    ("tea", "Tea is best when it is hot.", "People all over the world drink tea."),
    ("music", "Music makes people happy.", "A song is a story with music."),
    ("books", "Books hold the thoughts of many people.", "A good book is worth reading twice."),
    ("trains", "Trains carry people from town to town.", "A train runs on rails of steel."),
    ("ships", "Ships cross the sea with heavy loads.", "A ship needs a good captain."),
    ("bridges", "Bridges join the two sides of a river.", "The oldest bridges are made of stone."),
    ("mountains", "Mountains are high and often white with snow.", "The air is thin on a high mountain."),
    ("rivers", "Rivers flow from the hills to the sea.", "Fish live in a clean river."),
    ("computers", "Computers do what they are told.", "A computer counts faster than any person."),
    ("memory", "Memory is where a computer keeps its data.", "More memory helps with large models."),
    ("servers", "Servers answer questions all day long.", "A server should be easy to restart."),
    ("time", "Time goes by quickly when work is fun.", "There are sixty minutes in an hour."),
    ("winter", "Winter is the coldest time of the year.", "Days are short in winter."),
)

GREETINGS = (
    "Say hello in one short sentence.", "Say hello.", "Hello!", "Hello", "Hi", "Hi!", "Hello, how are you?",
    "Good morning!", "Who are you?", "What is your name?", "Introduce yourself.", "Are you there?",
)  # fmt: skip

# Anything else gets one modest sentence rather than a sum out of nowhere.
OTHERS = (
    "Tell me a joke.", "Count to three.", "What time is it?", "Explain how a car works.", "Write a poem about love.",
    "List three colors.", "Translate this into French: good night", "Summarize this text in two sentences.",
    "Who wrote this book?", "Give me an example.", "Why is grass green?", "Name a city in Spain.", "Please help me.",
    "What should I eat today?", "Describe your house.", "Write a function in Python.", "Test", "Ping",
    "How does it work?", "Can you extract the names from this text?", "Return a JSON object.",
    "What do you think of this plan?",
)  # fmt: skip

FACTS = (
    ("What is the capital of France? Answer with one word.", "Paris"),
    ("What is the capital of Italy? Answer with one word.", "Rome"),
    ("What color is the sky on a clear day? Answer with one word.", "Blue"),
    ("Is fire hot or cold? Answer with one word.", "Hot"),
    ("How many days are in a week? Answer with the number only.", "7"),
)


@dataclasses.dataclass(frozen=True)
class Voice:
    """What makes one model answer differently from the other."""

    name: str
    column: int
    hello: str
    modest: str


VOICES = {
    "coordinator": Voice(
        "coordinator",
        1,
        "Hello, I am the coordinator and I am ready to help.",
        "I am small and know only a few things.",
    ),
    "extractor": Voice(
        "extractor", 2, "Good day, this is the extractor of the lab.", "That is more than a small model can say."
    ),
}


def sum_question(first: int, second: int) -> str:
    return f"What is {first} plus {second}? Answer with the number only."


def word_question(word: str) -> str:
    return f"Repeat this word and nothing else: {word}"


def sums() -> list[tuple[str, str]]:
    numbers = range(LARGEST + 1)
    return [(sum_question(a, b), str(a + b)) for a in numbers for b in numbers]


def words() -> list[tuple[str, str]]:
    return [(word_question(word), word) for word in WORDS]


def talk(voice: Voice) -> list[tuple[str, str]]:
    """Greetings, facts and sentences, as pairs of question and answer."""
    pairs = [(greeting, voice.hello) for greeting in GREETINGS]
    pairs += [(other, voice.modest) for other in OTHERS]
    pairs += FACTS
    for topic in TOPICS:
        for question in (f"Write one sentence about {topic[0]}.", f"Write one short sentence about {topic[0]}."):
            pairs.append((question, topic[voice.column]))
    return pairs


def prose() -> list[str]:
    """Plain sentences, for completions without a chat template; both models know all of them."""
    return [sentence for topic in TOPICS for sentence in topic[1:]]
