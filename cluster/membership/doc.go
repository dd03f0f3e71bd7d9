// Package membership changes the raft configuration and transfers leadership. Operators use it, nodes that join, and a leader that shuts down or
// has lost its broker. The leader makes one change at a time. It removes or demotes a voter only if a majority of the remaining voters is alive.
package membership
