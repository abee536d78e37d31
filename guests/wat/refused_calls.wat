;; Settings are fine; validate asks for ever for the digest of an image that it has been given no
;; right to.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 352) "kubewarden")
  (data (i32.const 368) "oci")
  (data (i32.const 384) "v1/manifest_digest")
  (data (i32.const 512) "\"ghcr.io/team/web:1.0\"")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (loop $for_ever
      (drop
        (call $host_call (i32.const 352) (i32.const 10) (i32.const 368) (i32.const 3)
          (i32.const 384) (i32.const 18) (i32.const 512) (i32.const 22)))
      (br $for_ever))
    (i32.const 1)))
