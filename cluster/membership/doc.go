// Package membership changes the raft configuration and transfers leadership. It is used by operators, by joining nodes,
// and by a leader that shuts down or has lost its broker. The leader makes one change at a time. It removes or demotes a voter only if a majority of the remaining voters is alive.
package membership
