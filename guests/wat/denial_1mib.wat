;; Settings are fine; validate denies with a message of 1 MiB that is full of control characters:
;; terminal codes, line ends, NUL, quotes, a text direction override. In JSON all are escaped as
;; they should be.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 40)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 65536) "{\"accepted\":false,\"message\":\"")
  (data (i32.const 1024) "\\u001b[31mdenied\\n\\r\\t\\u0000\\\"\\\\\\u007f\\u009b\\u202e and once more, for the record: no ")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $to i32) (local $round i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (local.set $to (i32.const 65565))
    (loop $more
      (memory.copy (local.get $to) (i32.const 1024) (i32.const 85))
      (local.set $to (i32.add (local.get $to) (i32.const 85)))
      (local.set $round (i32.add (local.get $round) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $round) (i32.const 18079))))
    ;; The closing quote and brace.
    (i32.store16 (local.get $to) (i32.const 0x7d22))
    (call $respond (i32.const 65536) (i32.sub (local.get $to) (i32.const 65534)))
    (i32.const 1)))
