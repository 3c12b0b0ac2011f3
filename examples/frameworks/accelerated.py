# accelerated.py
import torch
from accelerate import Accelerator

batch = 8
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(192, 20)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long()), batch_size=batch)
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for epoch in range(2):
    for inputs, labels in data:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
