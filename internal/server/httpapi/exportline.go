package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// ParseExportedKey reads a line of an export file. It is stricter than encoding/json, which would
// silently change a key or a value, or lose a field: it compares names exactly, and refuses unknown
// names, names that are given twice, and invalid characters.
func ParseExportedKey(line []byte) (key ExportedKey, err error) {
	// editors on Windows begin a file with a byte order mark
	line = bytes.TrimPrefix(line, []byte("\ufeff"))
	if !utf8.Valid(line) || hasLoneSurrogate(line) {
		return key, errors.New(
			"the line has characters that are not valid: give keyBase64 or valueBase64")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return key, errors.New("the line is no JSON object")
	}
	fields := map[string]any{
		"key": &key.Key, "keyBase64": &key.KeyBase64, "value": &key.Value,
		"valueBase64": &key.ValueBase64,
		"version":     &key.Version, "ttl": &key.TTL, "token": &key.Token,
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return key, err
		}
		field, known := fields[name.(string)] // the name of a field is a string
		if !known {
			return key, fmt.Errorf("field %s is unknown, or given twice", Shown(name.(string)))
		}
		delete(fields, name.(string))
		if err := decoder.Decode(field); err != nil {
			return key, fmt.Errorf("%s: %w", name, err)
		}
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return key, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return key, errors.New("there is something behind the JSON object")
	}
	return key, key.Validate()
}

// Shown returns a text for an error message: quoted, and cut where it is long.
func Shown(text string) string {
	const most = 200
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return fmt.Sprintf("%q… (%d bytes)", text[:most], len(text))
}

// hasLoneSurrogate reports whether JSON text has an escape of half a UTF-16 pair, which
// encoding/json replaces.
func hasLoneSurrogate(text []byte) bool {
	high := false // the escape just before is the first half of a pair
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			if high {
				return true
			}
			i++
			continue
		}
		code := uint64(0)
		size := 2
		if i+6 <= len(text) && text[i+1] == 'u' {
			// encoding/json reports what is malformed
			code, _ = strconv.ParseUint(string(text[i+2:i+6]), 16, 16)
			size = 6
		}
		low := code >= 0xDC00 && code <= 0xDFFF
		if high != low {
			return true
		}
		high = code >= 0xD800 && code <= 0xDBFF
		i += size
	}
	return high
}
