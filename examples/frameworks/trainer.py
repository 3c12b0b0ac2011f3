# trainer.py
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

batch = 8
torch.manual_seed(0)
words = torch.randint(100, (192, 12))
samples = [{"input_ids": each, "labels": each[0] % 2} for each in words]
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    hidden_dropout_prob=0,
    attention_probs_dropout_prob=0,
)
arguments = TrainingArguments(
    "output",
    use_cpu=True,
    per_device_train_batch_size=batch,
    num_train_epochs=2,
    learning_rate=1e-2,
    report_to="none",
    average_tokens_across_devices=False,
    train_sampling_strategy="sequential",
    save_strategy="no",
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=samples)
trainer.train()
if arguments.process_index == 0:
    torch.save(trainer.model.state_dict(), "model.pt")
