# averaged_perceptron.py
import lightning
import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.world import failure_ends_all_ranks, hide_launcher

world = MPI.COMM_WORLD
batch = 8


class Perceptron(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))

    def training_step(self, samples, index):
        inputs, labels = samples
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self):
        return DistributedOptimizer(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), self)


with failure_ends_all_ranks():
    hide_launcher()
    torch.manual_seed(0)
    x = torch.randn(192, 20)[world.rank :: world.size]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long()), batch_size=batch)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=world.rank == 0,
    )
    model = Perceptron()
    trainer.fit(model, data)
    if world.rank == 0:
        torch.save(model.state_dict(), "model.pt")
