// Package leader executes the requests that the cluster's session brings, and answers them, on the
// node that leads.
//
//	d := leader.NewDispatcher(&config, metrics, log)
//	d.SetStore(store)
//	// For each leadership, when the publishing connections were taken over:
//	l := d.NewLeader(clients, reconnect)
//	d.Begin(l, connections) // queues the notifications that the earlier leader did not publish
//	d.Lead(ctx, l)          // returns when the context ends
//
// The Dispatcher lives as long as the node. It passes what a Receiver has decoded, and what the
// store reports of the log, to the Leader of the present leadership. The Leader gives each request
// to the Store (execute.go), and publishes its reply, and the notifications of its changes
// (deliver.go).
//
// A request is acknowledged to the broker when it has ended: the broker has its reply, or there is
// none. It is in one of these states:
//
//	executing    the store has its command or its read
//	shedding     the store has its refusal as overload
//	refusing     the store has its refusal, because it must not take effect any more: it expired,
//	             or it is so old that its outcome may be forgotten. If the log has an outcome of
//	             it, that is the reply
//	delivering   its reply is on its way to the broker
//	done
//
// What is not done when a leadership ends is not acknowledged. The broker delivers it to the next
// leader, in each client's order, and the log's dedup table has the outcome of what was executed.
//
// Leader.mu guards a Leader and its requests. Locks are taken in this order: the store's state
// (View), Leader.mu, then one of the store's queues, the locks of package outbox, or the
// acknowledgements of a session. A name that ends in Locked says that Leader.mu must be held.
package leader
