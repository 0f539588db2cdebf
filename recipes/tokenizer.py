"""The tokenizer of the embedded models: every word and every number is a token."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from twotemp.tasks import countdown, programs, words

BOS, EOS, MASK, END_OF_TURN, UNKNOWN = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|eot_id|>",
    "<|unknown|>",
)
MAX_LENGTH = 128  # tokens of prompt and answer together
SPECIAL = (BOS, EOS, MASK, END_OF_TURN, UNKNOWN)  # spelled as LLaDA spells them

# A turn is its words and an end token. Roles need no token, because the user always speaks first.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} {{ message['content'] | trim }} <|eot_id|>{% endfor %}"
)


def build() -> PreTrainedTokenizerFast:
    """Return the tokenizer; it covers all embedded tasks, whichever of them a recipe trains on."""
    vocabulary = dict.fromkeys((*SPECIAL, *countdown.VOCABULARY, *words.VOCABULARY, *programs.VOCABULARY))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[MASK, END_OF_TURN],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
