"""What commands leave for a later run: made once, damaged, read by the same command."""

KEPT_SCORES = (
    *("cmlm.evaluate", "--model=run", "--data_dir=sets", "--tasks=tatoeba,pawsx"),
    "--cache_dir=cache",
)
WORK_DIR = (
    *("cmlm.mine", "--model=run", "--source=lines.txt", "--target=lines.txt"),
    *("--threshold=-9", "--margin=absolute", "--work_dir=work"),
)
TEACHER_CACHE = (
    *("cmlm.train", "--experiment=distill/text", "--train_data=corpus.txt"),
    *("--teacher=run", "--teacher_cache=teacher", "--vocab_file=run/vocab.txt"),
    "--params_override=model.num_layers=1,model.hidden_size=8",
    "--params_override=model.num_attention_heads=2,model.intermediate_size=16",
    "--params_override=model.vocab_size=0,trainer.train_steps=1",
    "--params_override=trainer.validation_interval=1,trainer.best_checkpoint_metric=",
    "--params_override=task.distill.train_data.global_batch_size=4",
    "--params_override=task.distill.train_data.hold_out_fraction=0.2",
    "--params_override=vocabulary.max_unknown_share=1",
)
COMMANDS = (
    (*KEPT_SCORES, "--output=out/report.json"),
    (*WORK_DIR, "--output=out/m.tsv"),
    (*TEACHER_CACHE, "--model_dir=out/student"),
    ("cmlm.quality", "--good=corpus.txt", "--bad=other.txt", "--output=quality.npz"),
)
