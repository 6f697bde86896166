"""Models on the Hugging Face hub. Importing this module needs `pip install "lipschitz-rnn[hub]"`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

try:
    from huggingface_hub import ModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError('models on the hub need huggingface_hub: pip install "lipschitz-rnn[hub]"') from error

from lipschitz_rnn._version import __version__
from lipschitz_rnn.data.saving import FILE_NAME, SavedModels, load_model, save_folder


class HubModels(
    SavedModels,
    ModelHubMixin,
    library_name="lipschitz-rnn",
    paper_url="https://arxiv.org/abs/2006.12070",
    tags=["time-series", "recurrent-neural-network"],
):
    """`SavedModels` with the hub's `save_pretrained`, `from_pretrained` and `push_to_hub`.

    A repository, or a local folder, holds `model.safetensors`, which has everything; `config.json`, a summary for
    people and for the hub's counting of downloads; and a model card.

    Example:
        >>> HubModels(models, extra).push_to_hub("name/repository")  # doctest: +SKIP
        >>> HubModels.from_pretrained("name/repository").predict(series)  # doctest: +SKIP
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> HubModels:
        # The mixin would keep the arguments as the configuration; ours is in the file.
        return object.__new__(cls)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_folder(save_directory, self.models, self.extra)
        target, preprocessing = self.target, self.preprocessing
        recipes = [dict(getattr(model.unit, "recipe", {})) for model in self.models]
        summary = {
            "library": "lipschitz-rnn",
            "version": __version__,
            "task": target.kind,
            "target": list(target.names),
            "classes": None if target.classes is None else list(target.classes),
            "columns": list(preprocessing.columns),
            "networks": recipes,
        }
        (save_directory / "config.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **model_kwargs: Any,
    ) -> HubModels:
        place = Path(model_id)
        if not place.is_dir():
            options: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "token": token}
            options |= {"force_download": force_download, "local_files_only": local_files_only}
            place = Path(hf_hub_download(model_id, FILE_NAME, **options))
        found = load_model(place)
        models = cls(found.models, found.extra, model_id)
        object.__setattr__(models, "_hub_mixin_config", {"library": "lipschitz-rnn"})  # frozen; else the mixin sets it
        return models
