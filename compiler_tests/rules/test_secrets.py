"""N905 looks for marks before it searches by patterns: each kind of secret has one."""

import pytest

from forgedsl.lint.rules import n905

LETTERS = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"


@pytest.mark.parametrize(
    "text",
    [
        f"hf_{LETTERS}",
        f"sk-{LETTERS}",
        *(f"gh{letter}_{LETTERS}" for letter in "pousr"),
        f"github_pat_{LETTERS}",
        "AKIA1234567890ABCDEF",
        *(f"xox{letter}-{LETTERS}" for letter in "abprs"),
        f"AIza{LETTERS}abc",
        f"glpat-{LETTERS}",
        f"wandb_v1_{LETTERS}",
        "-----BEGIN RSA PRIVATE KEY-----",
        f"export WANDB_API_KEY={LETTERS}",
        f"?apikey={LETTERS}",
        f"?api_Key={LETTERS}",
        f"TOKEN={LETTERS}",
        f"SECRET='{LETTERS}'",
        f'password="{LETTERS}"',
        "https://me:passw0rd9x@judge.example.org/v1",
    ],
)
def test_each_kind_of_secret_is_found(text):
    assert n905._is_secret(f'setup = ["{text}"]')


def test_no_secret():
    assert not n905._is_secret('param hf_id : str = "Qwen/Qwen3-1.7B"')
