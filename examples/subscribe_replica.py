"""A trainer and a replica: the replica's module switches to each version as a whole, between its own forwards.

Run it by itself: `python examples/subscribe_replica.py`. Needs torch.
"""

import torch

import paramstream as ps


def main() -> None:
    torch.manual_seed(0)
    trained, served = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        trainer = client.publisher("model", producer="trainer-0")
        receipt = trainer.publish_weights(trained, version=0)
        replica = client.replica("model")
        bound = replica.bind(served)
        for step in range(1, 101):
            inputs = torch.randn(32, 2)
            loss = (trained(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            receipt = trainer.publish_weights(trained, version=step)
        replica.wait(receipt)
        # A forward takes the newest version first, if it is not there yet.
        print("1 + 2 =", round(served(torch.tensor([1.0, 2.0])).item(), 2), "by version", bound.version)
        assert all(torch.equal(trained.state_dict()[name], value) for name, value in served.state_dict().items())
    print("trainer and replica are equal, bit for bit")


if __name__ == "__main__":
    main()
