// Package session holds a node's sessions with the broker.
//
//	own := session.NewOwn(&config, &env, replies) // on every node
//	go own.Run(ctx)
//
//	requests := session.NewCluster(&config, &env, handler, log, confirm) // on the node that leads
//	go requests.Run(leadership)
//
// A node's own session (Own) only shows whether the broker can be reached. The cluster has one
// durable session (Cluster), which receives the requests: the leader connects it, and acknowledges
// a request after its reply. The broker keeps what is not acknowledged, and delivers it to the next
// leader, in the order in which it came.
//
// The cluster's session may deliver old requests, which have waited in a queue or in a socket. The
// dedup table forgets outcomes, so the leader has to know how old a request can be. It sends probes
// to itself through the broker (prober). The broker received the messages behind a probe after the
// probe, so a probe that returns bounds their age. What comes before the first probe of a
// connection was received after the horizon: a moment in the log, after which the broker received
// all that it has not seen acknowledged. No clock of the broker and no wall clock has a part in it.
//
// The package knows nothing of the state and of the payload of requests: it gives messages to a
// Handler.
//
// Locks: connection.mu, prober.mu and status.mu are last in the order: no other lock of the project
// is taken while one of them is held, except that of the acknowledgements within connection.mu. No
// lock of this package is held while a Handler is called.
package session
