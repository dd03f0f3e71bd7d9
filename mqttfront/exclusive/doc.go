// Package exclusive makes sure that this cluster is the only store of its protocol at the broker.
//
//	checker := exclusive.New(config, environment)
//	go checker.Run(ctx, session.Publish)
//	checker.AwaitAlone(ctx)     // before the node serves
//	checker.AwaitOther(ctx)     // returns when it has to stop
//
// Two stores at one request topic both answer every request: a lock has two owners, and a key is
// there and is not there. So each node asks: it publishes a GET on the request topic, as a client
// does, with a response topic of its own. The nodes of its cluster know the question by a user
// property, and leave it. Whoever answers is another store: another cluster, a copy, or another
// implementation. The leader asks every 5 s and before it serves for the first time, the others
// every 30 s.
//
// A leader that gets an answer serves no more, and asks on until it gets none for 20 s, which is
// longer than a failover of the other cluster takes. A leader that does not serve answers no
// question. So of two clusters the one that was there first goes on, and where both serve after a
// partition, the one that asks first does.
//
// Only answers count: a client that publishes a question can make a node note it, and nothing more.
package exclusive
