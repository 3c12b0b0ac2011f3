# averaged_trainer.py
import torch
from mpi4py import MPI
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.world import failure_ends_all_ranks, hide_launcher

world = MPI.COMM_WORLD
batch = 8
with failure_ends_all_ranks():
    hide_launcher()
    torch.manual_seed(0)
    words = torch.randint(100, (192, 12))
    samples = [{"input_ids": each, "labels": each[0] % 2} for each in words[world.rank :: world.size]]
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    model = BertForSequenceClassification(config)
    optimizer = DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    arguments = TrainingArguments(
        f"output-{world.rank}",
        use_cpu=True,
        per_device_train_batch_size=batch,
        num_train_epochs=2,
        report_to="none",
        save_strategy="no",
        train_sampling_strategy="sequential",
        disable_tqdm=world.rank > 0,
    )
    trainer = Trainer(model, arguments, train_dataset=samples, optimizers=(optimizer, None))
    trainer.train()
    if world.rank == 0:
        torch.save(model.state_dict(), "model.pt")
