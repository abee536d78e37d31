;; A template: asks for the digest of an image (oci v1/manifest_digest), and fails with the error text of
;; the host, as policies do that pass errors on; accepts when there is a digest. Replace {{ANSWER}} by the
;; image's name as a JSON text, as the inside of a WebAssembly text string (`\hh` for a byte is always
;; right), {{LEN}} by the number of its bytes.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__guest_error" (func $fail (param i32 i32)))
  (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_error_len" (func $host_error_len (result i32)))
  (import "wapc" "__host_error" (func $host_error (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 256) "kubewarden")
  (data (i32.const 272) "oci")
  (data (i32.const 288) "v1/manifest_digest")
  (data (i32.const 512) "{{ANSWER}}")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (if (i32.eq (i32.const 1)
          (call $host_call (i32.const 256) (i32.const 10) (i32.const 272) (i32.const 3)
            (i32.const 288) (i32.const 18) (i32.const 512) (i32.const {{LEN}})))
      (then (call $respond (i32.const 32) (i32.const 17)) (return (i32.const 1))))
    (call $host_error (i32.const 4096))
    (call $fail (i32.const 4096) (call $host_error_len))
    (i32.const 0)))
