"""MTEB takes our encoder for one of its own. Runs where mteb is installed."""

import model_dirs
import pytest

pytest.importorskip("mteb")


def test_encoder_of_mteb(tmp_path):
    from mteb.models import models_protocols

    from cmlm.encoders import opening
    from cmlm.mteb import MtebEncoder

    source = model_dirs.write(tmp_path / "model_dir")
    assert MtebEncoder(source, "bfloat16")._encoder.info["precision"] == "bfloat16"
    encoder = MtebEncoder(tmp_path / "model_dir")
    assert isinstance(encoder, models_protocols.EncoderProtocol)
    batches = [{"text": model_dirs.SENTENCES[:3]}, {"text": model_dirs.SENTENCES[3:]}]
    encoded = encoder.encode(batches, task_metadata=None, hf_split="", hf_subset="")
    expected = opening.open_encoder(source).encode(model_dirs.SENTENCES)
    model_dirs.assert_same(encoded, expected)
    assert encoder.mteb_model_meta.embed_dim == expected.shape[1]
    assert encoder.mteb_model_meta.revision.endswith(
        f"-{encoder.mteb_model_meta.max_tokens}"
    )
    short = MtebEncoder(source, dimensions=5).mteb_model_meta
    assert short.embed_dim == 5
    assert short.revision != encoder.mteb_model_meta.revision
    similarity = encoder.similarity(encoded, encoded)
    assert float(similarity[0][0]) == pytest.approx(1, abs=1e-5)


def test_queries_and_documents_get_their_prompts(tmp_path):
    from mteb import types

    from cmlm.encoders import opening
    from cmlm.mteb import MtebEncoder

    named = ["query=the cat ", "passage=a mat, "]
    source = model_dirs.write(tmp_path / "model_dir", **{"model.prompts": named})
    encoder, plain = MtebEncoder(source), opening.open_encoder(source)
    for kind, prompt in (
        (types.PromptType.query, "the cat "),
        (types.PromptType.document, "a mat, "),
        (None, ""),
    ):
        encoded = encoder.encode([{"text": ["dog", ""]}], prompt_type=kind)
        model_dirs.assert_same(encoded, plain.encode([f"{prompt}dog", prompt]))


def test_scores_of_other_prompts_are_not_taken(tmp_path):
    """MTEB keeps scores by the revision."""
    from cmlm.mteb import MtebEncoder

    revisions = {}
    for number, stated in enumerate(
        ([], ["query=a "], ["query=the "], ["passage=a "], ["query=a ", "other=the "])
    ):
        folder = tmp_path / str(number) / "model_dir"
        encoder = MtebEncoder(model_dirs.write(folder, **{"model.prompts": stated}))
        revisions[number] = encoder.mteb_model_meta.revision
    # Tasks do not read the prompt of another name.
    assert revisions.pop(4) == revisions[1]
    assert len(set(revisions.values())) == 4
