//! The verifier finds nothing wrong with what XLA wrote, before and after optimization for three kinds of device.

use memplan_testkit::{FORMS, corpus};

#[test]
fn the_corpus_is_valid() {
    for program in corpus() {
        for form in FORMS {
            let module = memplan_hlo::parse(&program.text(form)).expect("the corpus parses");
            if let Err(errors) = memplan_ir::verify(&module) {
                panic!("{}:\n{errors}", program.text_path(form).display());
            }
        }
    }
}

/// What XLA's parser and verifier take is valid here too, and what its verifier refuses is not.
#[test]
fn verdicts_are_those_of_xla() {
    let valid = include_str!("../../../tests/hlo/parse/as_xla_takes_it.hlo");
    let module = memplan_hlo::parse(valid).expect("it parses");
    assert_eq!(memplan_ir::verify(&module).map_err(|errors| errors.to_string()), Ok(()));

    #[track_caller]
    fn refused(instructions: &str, why: &str) {
        let computations = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }";
        let text =
            format!("HloModule m\n{computations}\nENTRY e {{ p = f32[4] parameter(0) {instructions} }}");
        let module = memplan_hlo::parse(&text).expect("it parses");
        let errors = memplan_ir::verify(&module).expect_err("it is not valid").to_string();
        assert!(errors.contains(why), "{why} in: {errors}");
    }
    refused(
        "ROOT c = pred[4] compare(p, p), direction=LT, type=SIGNED",
        "must be FLOAT or TOTALORDER for f32",
    );
    refused(
        "i = u8[4] convert(p) ROOT c = pred[4] compare(i, i), direction=LT, type=SIGNED",
        "UNSIGNED for u8",
    );
    refused("ROOT s = f32[] custom-call(), custom_call_target=\"GetRngSeed\"", "must be of type u64");
    refused("ROOT a = (f32[4]) all-to-all(p), replica_groups={{0,1}}", "takes 2 operands, has 1");
    refused(
        "ROOT a = f32[4] all-reduce(p), replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum",
        "use_global_device_ids needs a channel_id",
    );
    refused(
        "ROOT a = f32[4] all-reduce(p), replica_groups={}, channel_id=1, use_global_device_ids=true, to_apply=sum",
        "use_global_device_ids needs groups",
    );
    refused(
        "a = f32[4] all-reduce(p), constrain_layout=true, to_apply=sum \
         ROOT b = f32[4] all-reduce(p), to_apply=sum",
        "that of another all-reduce is not",
    );
    refused("ROOT b = f32[5] bitcast(p)", "as many bytes as the result");
    refused(
        "z = s32[] constant(0) o = (s32[], s32[]) tuple(z, z) i = (s32[]) tuple(z) \
         ROOT c = f32[4] collective-permute(p, p, i, o), source_target_pairs={{0,1}}, slice_sizes={{2}}",
        "one offset for each dimension",
    );
    refused(
        "t = token[] after-all() s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true \
         d = token[] send-done(s), channel_id=1, is_host_transfer=true \
         r = (f32[2], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true \
         ROOT e = (f32[2], token[]) recv-done(r), channel_id=1, is_host_transfer=true",
        "another transfer with the host on channel 1",
    );
    let sends = |name: &str| {
        format!(
            "t = token[] after-all() \
             s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true, frontend_attributes={{meets=\"a\"}} \
             d = token[] send-done(s), channel_id=1, is_host_transfer=true \
             u = (f32[4], u32[], token[]) send(p, d), channel_id=1, is_host_transfer=true, frontend_attributes={{meets=\"{name}\"}} \
             ROOT e = token[] send-done(u), channel_id=1, is_host_transfer=true"
        )
    };
    refused(&sends("b"), "another transfer with the host on channel 1");
    const PIN: &str =
        "b = b(f32[4]) custom-call(p), custom_call_target=\"Pin\", output_to_operand_aliasing={{}: (0, {})}";
    let writer =
        |name: &str, to: &str| format!("{name} = b(f32[4]) custom-call(b), custom_call_target=\"w\"{to}");
    let aliased = ", output_to_operand_aliasing={{}: (0, {})}";
    refused("ROOT b = f32[4] custom-call(p), custom_call_target=\"Pin\"", "must turn one array to a buffer");
    refused(&format!("{PIN} ROOT n = b(f32[4]) copy(b)"), "which only calls, loops and tuples may");
    refused(&format!("{PIN} ROOT {}", writer("w", "")), "must be one part of the result, is 0");
    let [one, other] = [writer("w", aliased), writer("x", aliased)];
    refused(&format!("{PIN} {one} ROOT {other}"), "is written by more than one");
}

/// XLA takes it, but there is no memory that could be meant.
#[test]
fn an_output_in_two_operands_is_refused() {
    let text = "HloModule m
        ENTRY e {
          p = f32[4] parameter(0)
          q = f32[4] parameter(1)
          ROOT c = f32[4] custom-call(p, q), custom_call_target=\"foo\", output_to_operand_aliasing={{}: (1, {}), {}: (0, {})}
        }";
    let module = memplan_hlo::parse(text).expect("it parses");
    let errors = memplan_ir::verify(&module).expect_err("it is not valid").to_string();
    assert!(errors.contains("one operand for each output") && errors.contains("two for output"), "{errors}");
}
