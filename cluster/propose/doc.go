// Package propose turns commands into log entries.
//
// Lock: Proposer.mu is the last in the order of locks.
package propose
