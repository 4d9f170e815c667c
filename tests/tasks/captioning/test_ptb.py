"""Tokens of captions are those of Stanford's PTBTokenizer, in lower case and without punctuation."""

from __future__ import annotations

import pytest

from attngraft.tasks.captioning.ptb import tokenize

#: written by the Java program, pycocoevalcap 1.2
STANFORD = {
    "Don't they'll it's the dogs' bowl, isn't it?": "do n't they 'll it 's the dogs bowl is n't it",
    "A man (in red) [blue] {green} <tag> stands.": (
        "a man -lrb- in red -rrb- -lsb- blue -rsb- -lcb- green -rcb- <tag> stands"
    ),
    'A sign says "STOP" and "GO".': "a sign says stop and go",
    "a well-known T-shirt -- and more - here": "a well-known t-shirt and more here",
    "It costs $3.88 (about 3,36 euros) at 5:30 p.m.": "it costs $ 3.88 -lrb- about 3,36 euros -rrb- at 5:30 p.m.",
    "Mr. Smith and Dr. Jones vs. the U.S. team.": "mr. smith and dr. jones vs. the u.s. team",
    "a cat.. and a dog... and rain....": "a cat and a dog and rain",
    "rock 'n' roll ain't gonna wanna cannot lemme gimme gotta": (
        "rock 'n' roll ai n't gon na wan na can not lem me gim me got ta"
    ),
    "an 8-year-old boy 's 3/4 cup & 50% off #1": "an 8-year-old boy 's 3/4 cup & 50 % off # 1",
    "one,two;three:four": "one two three four",
    "he said: 'hello there'": "he said hello there",
    "'tis 'twas": "'t is 't was",
    "hello!! what??  yes!?": "hello !! what ?? yes !?",
    "O'Brien's café naïve 北京": "o'brien 's café naïve 北京",
    "the end. Another sentence. last": "the end another sentence last",
    "1980's '80s 80s": "1980 's '80s 80s",
    "and/or w/ w/o": "and/or w / w/o",
    "a*b ~ c_d ^ |": "a * b ~ c_d ^ |",
    'the "big" one “quoted” ‘single’ – dash — long …': "the big one quoted single dash long",
    "isn’t it the dog’s ‘bowl’ ?": "is n't it the dog 's bowl",
    "No. 5 jersey no. 5": "no. 5 jersey no. 5",
    "50ft. long 6 ft. tall": "50ft long 6 ft. tall",
    "a dog ,a cat .a bird": "a dog a cat a bird",
    "t.v. and TV.s at statefarm.com": "t.v. and tv.s at statefarm.com",
    "isn`t don`t": "is n`t do n`t",
    "5'4\" tall, she'd've": "5 4 tall she 'd 've",
    "the <unk> and": "the <unk> and",
    "   ": "",
    "": "",
}


@pytest.mark.parametrize("caption", STANFORD)
def test_tokens_are_those_of_stanfords_tokenizer(caption: str) -> None:
    assert tokenize(caption) == STANFORD[caption].split()
