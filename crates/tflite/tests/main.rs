//! Models made by PyPI's `tflite` (`scripts/make_tflite.py`): plans, offsets in the model, and damage.

use std::path::Path;

use memplan_tflite::{METADATA, Options, TfliteError, plan, read, write};

fn model(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)).unwrap()
}

#[test]
fn lifetimes_are_those_of_the_runtime() {
    let model = read(&model("residual.tflite")).unwrap();
    let main = &model.subgraphs[0];
    let found: Vec<_> = main
        .tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.size, tensor.lifetime.map(|it| (it.first, it.last))))
        .collect();
    // An input from the start, a constant never, what the end reads to the end.
    let expected = [
        ("input", Some(256), Some((0, 2))),
        ("weights", Some(4096), None),
        ("a", Some(512), Some((1, 3))),
        ("b", Some(256), Some((2, 4))),
        ("state", Some(64), None),
        ("c", Some(256), Some((3, 4))),
        ("output", Some(256), Some((4, 5))),
    ];
    assert_eq!(found, expected);
    assert_eq!(main.n_operators, 4);
}

#[test]
fn offsets_are_in_the_model_and_everything_else_stays() {
    let bytes = model("residual.tflite");
    let parsed = read(&bytes).unwrap();
    let found = plan(&parsed, &Options::default()).unwrap();
    // Operator 2 needs the input, `a` and `b`; 3 needs `a`, `b` and `c`.
    assert_eq!((found.arena, found.lower_bound), (1024, 1024));
    let tensors = &parsed.subgraphs[0].tensors;
    for (i, a) in tensors.iter().enumerate() {
        for (j, b) in tensors.iter().enumerate().skip(i + 1) {
            let (Some(x), Some(y), Some(p), Some(q)) =
                (a.lifetime, b.lifetime, found.offsets[i], found.offsets[j])
            else {
                continue;
            };
            let together = x.first <= y.last && y.first <= x.last;
            let apart = p + a.size.unwrap() <= q || q + b.size.unwrap() <= p;
            assert!(!together || apart, "{} and {}", a.name, b.name);
        }
    }
    let written = write(&bytes, &found).unwrap();
    assert_eq!(read(&written).unwrap(), parsed);
    assert!(written.ends_with(&bytes[8..]), "the model is there as it was");
    let words: Vec<u8> = [1i32, 0, 7]
        .into_iter()
        .chain(found.offsets.iter().map(|offset| offset.map_or(-1, |offset| offset as i32)))
        .flat_map(i32::to_le_bytes)
        .collect();
    let at = written.windows(words.len()).position(|window| window == words).unwrap();
    assert_eq!(at % 16, 0, "data of buffers are aligned");
    // A second plan replaces the first.
    let again = write(&written, &found).unwrap();
    let entries = again.windows(METADATA.len()).filter(|window| *window == METADATA.as_bytes()).count();
    assert_eq!(entries, 2, "the old name is there, but nothing leads to it");
    assert_eq!(read(&again).unwrap(), parsed);
}

#[test]
fn tensors_without_a_size_are_named() {
    let mut parsed = read(&model("residual.tflite")).unwrap();
    parsed.subgraphs[0].tensors[2].size = None;
    let error = plan(&parsed, &Options::default()).unwrap_err();
    assert!(matches!(&error, TfliteError::Size { number: 2, .. }), "{error}");
    assert!(error.to_string().contains("`a`"), "{error}");
    assert_eq!(read(b"HloModule m"), Err(TfliteError::NotAModel));
}

#[test]
fn damaged_models_are_errors() {
    let bytes = model("residual.tflite");
    for end in 0..bytes.len() {
        let _ = read(&bytes[..end]);
    }
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(model) = read(&damaged)
                && let Ok(plan) = plan(&model, &Options::default())
            {
                let _ = write(&damaged, &plan);
            }
        }
    }
}
