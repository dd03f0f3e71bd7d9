// Package schedule decides by a seed in which order the goroutines of a synctest bubble run, so
// that a run can be repeated switch by switch. It works in a binary that is built with the tag
// replay and the overlay of package golib; without them its functions do nothing, and Go decides.
//
// A run begins with Start, in the bubble's first goroutine, and ends with Finish. In between the
// process has one P, no goroutine is preempted, garbage is collected while all goroutines are idle,
// and everything that Go's runtime draws comes from the seed.
//
// Goroutines switch where they block, and, with the probabilities of the Settings, at
// synchronisation points. These are a blocking channel operation or select, Lock and RLock of a
// mutex, and Load, Store and CompareAndSwap of a typed atomic. A goroutine may belong to a group;
// the goroutines and timers that it starts inherit the group. A group stops as a whole, as a
// process does at SIGSTOP.
package schedule
