;; Asks for a list of all secrets (kubernetes list_resources_all) that it has been given no right
;; to. Denies with the error text of the host as the message, or accepts when the call succeeds.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_error_len" (func $host_error_len (result i32)))
  (import "wapc" "__host_error" (func $host_error (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 256) "kubewarden")
  (data (i32.const 272) "kubernetes")
  (data (i32.const 288) "list_resources_all")
  (data (i32.const 960) "0123456789abcdef")
  (data (i32.const 64) "{\"accepted\":false,\"message\":\"")
  (data (i32.const 512) "{\"api_version\":\"v1\",\"kind\":\"Secret\"}")
  ;; Copies text as the inside of a JSON string; returns the end of the copy.
  (func $escape (param $from i32) (param $len i32) (param $to i32) (result i32)
    (local $end i32) (local $byte i32)
    (local.set $end (i32.add (local.get $from) (local.get $len)))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $from) (local.get $end)))
        (local.set $byte (i32.load8_u (local.get $from)))
        (local.set $from (i32.add (local.get $from) (i32.const 1)))
        (if (i32.lt_u (local.get $byte) (i32.const 0x20))
          (then ;; \u00hh
            (i32.store (local.get $to) (i32.const 0x3030755c))
            (i32.store8 offset=4 (local.get $to) (i32.add (i32.const 48) (i32.shr_u (local.get $byte) (i32.const 4))))
            (i32.store8 offset=5 (local.get $to)
              (i32.load8_u offset=960 (i32.and (local.get $byte) (i32.const 15))))
            (local.set $to (i32.add (local.get $to) (i32.const 6)))
            (br $next)))
        (if (i32.or (i32.eq (local.get $byte) (i32.const 0x22)) (i32.eq (local.get $byte) (i32.const 0x5c)))
          (then ;; a backslash before quotes and backslashes
            (i32.store8 (local.get $to) (i32.const 0x5c))
            (local.set $to (i32.add (local.get $to) (i32.const 1)))))
        (i32.store8 (local.get $to) (local.get $byte))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (br $next)))
    (local.get $to))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $error_len i32) (local $end i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (if (i32.eq (i32.const 1)
          (call $host_call (i32.const 256) (i32.const 10) (i32.const 272) (i32.const 10)
            (i32.const 288) (i32.const 18) (i32.const 512) (i32.const 36)))
      (then (call $respond (i32.const 32) (i32.const 17)) (return (i32.const 1))))
    ;; The error text at 4096, escaped at 16384.
    (local.set $error_len (call $host_error_len))
    (if (i32.gt_u (local.get $error_len) (i32.const 2048)) (then unreachable))
    (call $host_error (i32.const 4096))
    (memory.copy (i32.const 16384) (i32.const 64) (i32.const 29))
    (local.set $end
      (call $escape (i32.const 4096) (local.get $error_len) (i32.const 16413)))
    ;; The closing quote and brace.
    (i32.store16 (local.get $end) (i32.const 0x7d22))
    (call $respond (i32.const 16384) (i32.sub (local.get $end) (i32.const 16382)))
    (i32.const 1)))
