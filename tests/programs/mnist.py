"""PyTorch's basic MNIST example (examples/mnist/main.py), data-parallel by DDP over gloo, or over mpi4py
as users of MPI write it; digits made here."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def over_gloo(model):
    dist.init_process_group("gloo")
    return DDP(model), lambda: None, dist.get_rank(), dist.get_world_size()


def over_mpi4py(model):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for parameter in model.parameters():
        world.Bcast(parameter.data.numpy())

    def average():
        for parameter in model.parameters():
            world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= world.size

    return model, average, world.rank, world.size


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0 and args.rank == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]\tLoss: {loss.item():.6f}"
            )


def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="input batch size for training (default: 64)"
    )
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="number of epochs to train (default: 1)")
    parser.add_argument("--lr", type=float, default=1.0, metavar="LR", help="learning rate (default: 1.0)")
    parser.add_argument("--gamma", type=float, default=0.7, metavar="M", help="Learning rate step gamma (default: 0.7)")
    parser.add_argument("--images", type=int, default=1024, help="images in the training set")
    parser.add_argument("--dry-run", action="store_true", help="quickly check a single pass")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed (default: 1)")
    parser.add_argument(
        "--log-interval", type=int, default=10, metavar="N", help="how many batches to wait before logging"
    )
    parser.add_argument("--save-model", action="store_true", help="For Saving the current Model")
    parser.add_argument("--backend", choices=["gloo", "mpi4py"], default="gloo")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    images = TensorDataset(torch.randn(args.images, 1, 28, 28), torch.randint(10, (args.images,)))
    model, average, args.rank, size = {"gloo": over_gloo, "mpi4py": over_mpi4py}[args.backend](Net())
    loader = DataLoader(images, args.batch_size // size, sampler=DistributedSampler(images, size, args.rank))
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    optimizer.register_step_pre_hook(lambda *_: average())
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        loader.sampler.set_epoch(epoch)
        train(args, model, loader, optimizer, epoch)
        scheduler.step()
    if args.save_model and args.rank == 0:
        torch.save(model.state_dict(), "mnist_cnn.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
