# perceptron.py
import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

batch = 8


class Perceptron(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))

    def training_step(self, samples, index):
        inputs, labels = samples
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


torch.manual_seed(0)
x = torch.randn(192, 20)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long()), batch_size=batch)
local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
nodes = int(os.environ.get("WORLD_SIZE", 1)) // local
strategy = DDPStrategy(process_group_backend="mpi")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=local,
    num_nodes=nodes,
    strategy=strategy,
    max_epochs=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
)
model = Perceptron()
trainer.fit(model, data)
if trainer.is_global_zero:
    torch.save(model.state_dict(), "model.pt")
