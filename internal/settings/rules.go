package settings

import (
	"reflect"
	"slices"
	"strings"

	"agentvm/egress"
)

// Rules returns the settings that are lists of a policy's rules (egress.Policy.Lists), in its order.
func Rules() (list []Setting) {
	for _, rules := range new(egress.Policy).Lists() {
		key := "network." + rules.Name
		if i := slices.IndexFunc(All(), func(s Setting) bool { return s.Key == key }); i >= 0 {
			list = append(list, All()[i])
		}
	}
	return list
}

// RuleFlags names the flags of Rules, as in a sentence: --allow, --allow-sni and --deny.
func RuleFlags() string {
	var names []string
	for _, s := range Rules() {
		names = append(names, "--"+s.Flag)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// RuleFields returns the lists of rules that a message of an API has, by their names in a policy: pointers to the fields of a struct that are tagged,
// as with rules:"allow". Nothing has to be done for a kind of rule but to add its field.
func RuleFields[T any](message *T) map[string]*[]string {
	fields := make(map[string]*[]string)
	v := reflect.ValueOf(message).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("rules"); name != "" {
			fields[name] = v.Field(i).Addr().Interface().(*[]string)
		}
	}
	return fields
}
