// Package sim runs whole clusters in virtual time: the real Raft, state machine, replication, connections between members and front
// end, over a network, a broker, disks and clocks that are simulated, with clients that write down what they see and faults that are
// drawn from a seed. After each run the checkers hold what the clients saw against the promises of docs/guarantees.md.
//
// A run is a pair of seeds. The first draws the world and the settings (tunables.go) and what goes wrong, when (plan.go; faults.go,
// operator.go and stops.go do it). The second, the schedule, draws the order in which goroutines run (package schedule), in a binary
// that is built with an overlay of Go's runtime (package golib): command simulate builds it. Without the overlay Go decides.
//
// Hosts (host.go) run a node each over the network (network.go, conn.go) and a disk (disk.go); the broker (broker.go, broker_wire.go)
// speaks MQTT with them. The clients (client.go) do the work of package workload. At the end everything heals (quiet.go), and
// verdict.go, delivery.go and package history judge.
//
// A node's goroutines are a group, which stops as a whole. What the simulation itself does on a node's goroutine is not part of the node:
// so its mutexes are schedule.Mutex, at which nothing stops, and nothing here may hold one while virtual time passes.
package sim
