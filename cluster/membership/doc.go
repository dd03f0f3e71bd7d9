// Package membership changes who is a member of the cluster, who votes and who leads: for operators, for nodes that join, and for a
// leader that stops or has lost its broker. Changes of the members are made one at a time, by the leader, and only while a majority
// of the voters that stay is alive.
package membership
