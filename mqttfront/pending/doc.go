// Package pending keeps the requests of a node that are not known to be answered, and hints of how other requests ended. It has no lock, no clock and no
// I/O: the caller provides locking and the current time.
//
// A request is in one of these states. It is held when it is pending, outcome known, duplicate or late. It is executing when the store has its command or
// its read. An error that needs no log entry passes through executing at once. A request is in the store ("in store" below) when it is executing,
// shedding, retrieving or rejecting.
//
//	from        when                                                         to
//	-           it arrives, or is taken from another node                    pending, or outcome known or duplicate
//	pending     the log has its outcome, and another node answers            outcome known
//	held        its outcome was found in the state                           duplicate
//	pending     a leader finds that it must not have an effect any more      late
//	late        the log has its outcome after all                            outcome known
//	pending     the leader proposes it, reads, or answers without the log    executing
//	pending     the leader refuses it as overload: in the log, or a read     shedding
//	            without it
//	duplicate   the leader proposes a refusal                                retrieving
//	held, and   the leader proposes a refusal: it expired, was shed, is      rejecting
//	no          late, or has an outcome that may be forgotten
//	duplicate
//	held        a new leader finds its outcome in the state                  delivering
//	executing   the log has its outcome, or the answer needs no log          delivering
//	shedding    the log has the refusal, or an outcome from before; a read   delivering
//	            needs no log
//	retrieving, the log has an outcome from before                           delivering
//	rejecting
//	in store    its outcome was found in the state, or its client sent it    retrieving
//	            again after the outcome
//	in store    the store gives it back, or the node leads no more           duplicate if it was retrieving, else outcome known if
//	                                                                         it is, else late if it was rejecting, else
//	                                                                         pending
//	delivering  the leadership ends                                          outcome known, or pending if it is not in the log
//
// A request is done, and not in the buffer any more, in these cases:
//
//	delivering  the broker has the reply, or there is none to be sent
//	in store    the log has a refusal that no client is told
//	in store    the store gives it back with an unknown outcome, and it is a write without an identity
//	pending     the leader sheds a write without an identity, or finds that a request without a dedup entry has expired
//	held        its outcome is published and it awaits no report, the leader reports it as answered, it can be forgotten (Forgettable),
//	            it is stale, it has expired and the buffer is crowded, it has expired and the node is the only holder, a copy takes its
//	            place, or the broker keeps it (ingest: leader)
//
// A held request awaits a report (the leader's broadcast of answered requests) if an earlier leader executed it. The present leader may not have known of
// it when it began. Its delivery watermark, the log index up to which no reply is outstanding, then does not show that the reply is published.
//
// An open request has no known outcome, and may be executed until it expires. After that it stays in the buffer for
// orderMemory, because its position helps to order other nodes' requests.
//
// The merge of what several nodes hold (merge.go, mergeorder.go) keeps the order in which each client sent its requests.
package pending
