# Calls the builtin that the object names, with the object's arguments, and denies with the result as the message: for tests.
package builtins

main := {"response": {"uid": input.request.uid, "allowed": false, "status": {"message": json.marshal(result)}}}

arguments := input.request.object.arguments

name := input.request.object.builtin

result := sprintf(arguments[0], arguments[1]) if name == "sprintf"
result := yaml.unmarshal(arguments[0]) if name == "yaml.unmarshal"
result := yaml.marshal(arguments[0]) if name == "yaml.marshal"
result := time.parse_rfc3339_ns(arguments[0]) if name == "time.parse_rfc3339_ns"
result := time.format(arguments[0]) if name == "time.format"
result := time.now_ns() if name == "time.now_ns"
result := [rand.intn(arguments[0], arguments[1]), rand.intn(arguments[0], arguments[1])] if name == "rand.intn"
result := crypto.sha256(arguments[0]) if name == "crypto.sha256"
result := io.jwt.decode(arguments[0]) if name == "io.jwt.decode"
result := semver.compare(arguments[0], arguments[1]) if name == "semver.compare"
result := units.parse_bytes(arguments[0]) if name == "units.parse_bytes"
result := regex.split(arguments[0], arguments[1]) if name == "regex.split"
result := json.patch(arguments[0], arguments[1]) if name == "json.patch"
result := urlquery.encode(arguments[0]) if name == "urlquery.encode"
result := net.cidr_contains(arguments[0], arguments[1]) if name == "net.cidr_contains"
result := opa.runtime() if name == "opa.runtime"

result := "printed" if {
	name == "print"
	print("said", arguments)
}

result := "looped" if {
	name == "loop"
	count([1 | some a in numbers.range(1, 30000); some b in numbers.range(1, 30000); a + b == 0]) == 0
}
