//! Completions and manual pages.

use crate::{failure, memplan};

#[test]
fn every_shell_and_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = memplan(folder.path(), &["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("memory-limit"), "{shell}");
    }
    assert_eq!(failure(folder.path(), &["completions", "tcsh"]).1, 2);

    assert!(memplan(folder.path(), &["man", "pages"]).status.success());
    let page = |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(page("memplan.1").contains("memplan\\-compile(1)"));
    assert!(page("memplan-compile.1").contains("\\-\\-memory\\-limit"));
    assert!(page("memplan-plan.1").contains(".TH memplan-plan"), "{}", page("memplan-plan.1"));
}

/// The scripts are for a shell to read: one that has a syntax of its own reads them here.
#[test]
fn bash_reads_its_script() {
    let folder = tempfile::tempdir().unwrap();
    let script = memplan(folder.path(), &["completions", "bash"]).stdout;
    std::fs::write(folder.path().join("script"), script).unwrap();
    let Ok(output) =
        std::process::Command::new("bash").args(["-n", "script"]).current_dir(folder.path()).output()
    else {
        eprintln!("skipped: no bash");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
