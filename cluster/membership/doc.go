// Package membership changes the raft configuration and transfers leadership. It is used by
// operators, by joining nodes, by a leader whose own address has changed, and by one that shuts
// down or has lost its broker. The leader makes one change at a time. It removes or demotes a
// member only if a majority of the remaining voters is alive. Autopilot promotes non-voters outside
// of this package and without its lock: raft accepts a change only when the previous configuration
// is committed.
package membership
