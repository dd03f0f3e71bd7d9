// Package sim runs whole clusters in virtual time: the real Raft, state machine, replication,
// connections between members and front end, over a network, a broker, disks and clocks that are
// simulated, with clients that write down what they see and faults that are drawn from a seed.
// After each run the checkers compare what the clients saw with the promises of docs/guarantees.md.
//
// A run is a pair of seeds. The first draws the world and the settings (tunables.go), and the
// faults with their times (plan.go). faults.go, late.go, operator.go and stops.go inject the
// faults. The second seed, the schedule, draws the order in which goroutines run (package
// schedule). This needs a binary that is built with an overlay of Go's runtime (package golib):
// command simulate builds it. Without the overlay Go decides the order.
//
// Hosts (host.go) run a node each over the network (network.go, conn.go) and a disk (disk.go); the
// broker (broker.go, broker_wire.go) speaks MQTT with them. The clients (client.go) do the work of
// package workload. At the end everything heals (quiet.go), and verdict.go, delivery.go and package
// history judge.
//
// A node's goroutines are a group, which stops as a whole. They also run code of the simulation
// itself, which must not stop with the node. So the simulation's mutexes are schedule.Mutex: a
// goroutine is not stopped when it locks one, or while it holds one. No code here may hold one
// while virtual time passes.
package sim
