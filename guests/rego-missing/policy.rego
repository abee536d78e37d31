# Calls builtins that this host does not have.
package missing

main := {"response": {"uid": input.request.uid, "allowed": http.send({"method": "GET", "url": "http://example.com"}).status_code == 200}}
