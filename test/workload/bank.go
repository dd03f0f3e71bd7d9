package workload

import (
	"fmt"

	"holdfast/hlc"
	"holdfast/test/history"
)

// teller is what a client knows of the bank of a generation.
type teller struct {
	name   string
	values [history.BankAccounts]string // that it read or wrote last; "" before the first
	// single is the number of the account that it read last by a GET, and version that value's version.
	single  int
	version hlc.Timestamp
}

func (t *teller) key(number int) string { return fmt.Sprintf("%s/%d", t.name, number) }

// transfers moves amounts between the accounts of a bank, and reads all of them at once. Several clients do so with the same accounts, so many
// transactions find that a balance is not what it was.
func (c *Client) transfers() {
	var t teller
	for c.pause() {
		if name := fmt.Sprintf("bank/%d", c.generation()); name != t.name {
			t = teller{name: name}
		}
		done, ok := c.Do(c.banking(&t))
		switch {
		case !ok:
		case done.Verb == history.Get:
			t.values[t.single], t.version = string(done.Reply.Bulk), done.Version
		case done.Applied():
			t.note(done)
		}
	}
}

// banking draws an operation on a bank.
func (c *Client) banking(t *teller) history.Op {
	all := history.Op{Verb: history.Txn, Key: t.name}
	order := c.random.Perm(history.BankAccounts)
	from, to, other := order[0], order[1], order[2]
	n := c.random.IntN(8)
	switch known := t.values[from] != "" && t.values[to] != ""; {
	case !known && n < 4: // open it
		for number := range t.values {
			all.Parts = append(all.Parts, history.Op{
				Verb: history.Set, Key: t.key(number), Value: history.AccountValue(history.BankOpening, c.part(number)), Condition: history.NX,
			})
		}
	case !known || n < 3:
		for number := range t.values {
			all.Parts = append(all.Parts, history.Op{Verb: history.Get, Key: t.key(number)})
		}
	case n == 3:
		t.single = from
		return history.Op{Verb: history.Get, Key: t.key(from)}
	case n == 4 && !t.version.IsZero(): // the same balance, by a command beside the transactions
		value := t.values[t.single]
		amount, _ := history.Balance(value)
		return history.Op{
			Verb: history.Set, Key: t.key(t.single), Value: history.AccountValue(amount, c.unique()),
			Condition: history.IfVer, Expected: value, ExpectedVersion: t.version,
		}
	default: // what it reads is in the reply, and has to be in that to a copy
		moved := 1 + c.random.IntN(10)
		all.Parts = []history.Op{t.add(from, -moved, c.part(from)), {Verb: history.Get, Key: t.key(other)}, t.add(to, moved, c.part(to))}
	}
	return all
}

// part returns a text that no other value has, in an operation that sets several.
func (c *Client) part(number int) string { return fmt.Sprintf("%s/%d", c.unique(), number) }

// add returns the part of a transaction that adds to an account.
func (t *teller) add(number, amount int, unique string) history.Op {
	before, _ := history.Balance(t.values[number])
	return history.Op{
		Verb: history.Set, Key: t.key(number), Value: history.AccountValue(before+amount, unique), Condition: history.NEX, Expected: t.values[number],
	}
}

// note takes up what an operation that took effect has read and written.
func (t *teller) note(o *history.Op) {
	t.version = hlc.Timestamp{} // the value may be another one
	if o.Verb == history.Txn && len(o.Reply.Replies) != len(o.Parts) {
		return // the judge says so
	}
	for i, part := range o.Operations() {
		value := part.Value
		if part.Verb == history.Get {
			value = string(o.Reply.Replies[i].Bulk)
		}
		t.values[history.Account(part.Key)] = value
	}
}
