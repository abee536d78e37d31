;; Looks up a host without a name, which fails, and traps.
(module
  (import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 32) "kubewarden")
  (data (i32.const 48) "net")
  (data (i32.const 64) "v1/dns_lookup_host")
  (data (i32.const 96) "\"\"")
  (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
    ;; validate_settings
    (if (i32.eq (local.get $operation) (i32.const 17))
      (then
        (call $respond (i32.const 0) (i32.const 14))
        (return (i32.const 1))))
    (drop (call $call
      (i32.const 32) (i32.const 10)
      (i32.const 48) (i32.const 3)
      (i32.const 64) (i32.const 18)
      (i32.const 96) (i32.const 2)))
    unreachable))
