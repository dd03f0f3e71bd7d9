// Package sim runs whole clusters in virtual time: the real Raft, state machine, replication, connections between members and front
// end, over a network, a broker, disks and clocks that are simulated, with clients that write down what they see and faults that are
// drawn from a seed. After each run the checkers hold what the clients saw against the promises of docs/guarantees.md.
//
// A seed draws the world and the settings (tunables.go) and what goes wrong, when (plan.go; faults.go does it). Hosts (host.go) run a
// node each over the network (network.go, conn.go) and a disk (disk.go); the broker (broker.go, broker_wire.go) speaks MQTT with
// them. The clients (client.go) work (workload.go) and write their history (history.go). At the end everything heals (quiet.go), and
// check.go, check_notes.go and model.go judge.
//
// The faults of a seed are the same each time; the order in which goroutines run is not. Nothing here may hold a mutex while virtual
// time passes: whoever waits for a mutex holds time up.
package sim
