package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/glob"
)

// ExportPath is the path of the export. An export only reads, but it is a POST: the key after which
// a page begins may be too long for a URL.
const ExportPath = "/v1/keys/export"

// ExportedKey is a key with all that a SET needs to make it again. It is also the format of a line
// of an export file. A new field must have omitempty, so that lines without it stay as they are.
// ValueBase64 has omitzero instead: a value that is empty is written, so that each line has a
// value.
type ExportedKey struct {
	Key         string  `json:"key,omitempty"` // if it is valid UTF-8
	KeyBase64   []byte  `json:"keyBase64,omitempty"`
	Value       *string `json:"value,omitempty"` // if it is valid UTF-8
	ValueBase64 []byte  `json:"valueBase64,omitzero"`
	Version     string  `json:"version,omitempty"`
	// milliseconds that were left; nil for a key that does not expire
	TTL   *int64 `json:"ttl,omitempty"`
	Token string `json:"token,omitempty"` // the fencing token
}

func toExported(info *fsm.KeyInfo) ExportedKey {
	key := ExportedKey{Version: info.Version.String()}
	if info.TTL > 0 {
		key.TTL = &info.TTL
	}
	if utf8.ValidString(info.Key) {
		key.Key = info.Key
	} else {
		key.KeyBase64 = []byte(info.Key)
	}
	if utf8.ValidString(info.Value) {
		key.Value = &info.Value
	} else {
		key.ValueBase64 = []byte(info.Value)
	}
	if info.Token != nil {
		key.Token = info.Token.String()
	}
	return key
}

// Name returns the key itself.
func (k *ExportedKey) Name() string {
	if k.Key != "" {
		return k.Key
	}
	return string(k.KeyBase64)
}

// Data returns the value itself.
func (k *ExportedKey) Data() []byte {
	if k.Value != nil {
		return []byte(*k.Value)
	}
	return k.ValueBase64
}

// Validate reports the first field that is missing, malformed or given twice.
func (k *ExportedKey) Validate() error {
	switch {
	case k.Key == "" && len(k.KeyBase64) == 0:
		return errors.New("key is missing: give key or keyBase64")
	case k.Key != "" && k.KeyBase64 != nil:
		return errors.New("key and keyBase64 exclude each other")
	case k.Value == nil && k.ValueBase64 == nil:
		return errors.New("value is missing: give value or valueBase64")
	case k.Value != nil && k.ValueBase64 != nil:
		return errors.New("value and valueBase64 exclude each other")
	case k.TTL != nil && *k.TTL <= 0:
		return fmt.Errorf("ttl is %d: must be positive", *k.TTL)
	}
	for name, text := range map[string]string{"version": k.Version, "token": k.Token} {
		if text == "" {
			continue
		}
		if _, err := hlc.Parse(text); err != nil {
			return fmt.Errorf("%s is %q: %w", name, text, err)
		}
	}
	return nil
}

// AppendLine appends the key as a line of an export file, with its newline.
func (k *ExportedKey) AppendLine(to []byte) []byte {
	line := bytes.NewBuffer(to)
	encoder := json.NewEncoder(line)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(k) // never fails: a key has only texts, byte strings and numbers
	return line.Bytes()
}

// ExportPage is a page of keys with their values.
type ExportPage struct {
	Keys []ExportedKey `json:"keys"`
	// Next is the After of the next page. It is empty at the end.
	Next string `json:"next"`
}

// ExportRequest says which page of an export is wanted. It is sent as a body, because a key may be
// too long for a header.
type ExportRequest struct {
	// pattern as in SCAN; nil means all keys, including those that are not valid UTF-8
	Pattern *string `json:"pattern,omitempty"`
	After   string  `json:"after,omitempty"` // the Next of the previous page, which is in Base64
}

// export answers with a page of keys and values, each as it is now.
func (a *admin) export(w http.ResponseWriter, r *http.Request) error {
	var request ExportRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	after, err := base64.StdEncoding.DecodeString(request.After)
	if err != nil {
		return badRequest{fmt.Errorf("after: %w", err)}
	}
	var pattern *glob.Pattern
	if request.Pattern != nil {
		if pattern, err = glob.Compile(*request.Pattern); err != nil {
			return badRequest{fmt.Errorf("pattern is %.100q: %w", *request.Pattern, err)}
		}
	}
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	var found []fsm.KeyInfo
	var next string
	a.Node.View(func(m *fsm.Machine) { found, next = m.Export(pattern, string(after)) })
	page := ExportPage{Keys: make([]ExportedKey, len(found)), Next: toBytes(next).Base64}
	for i := range found {
		page.Keys[i] = toExported(&found[i])
	}
	return writeJSON(w, page)
}
