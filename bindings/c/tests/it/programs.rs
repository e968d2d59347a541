//! Programs that are compiled, linked with the library and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of this crate.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of `libfloe_c.so` and `libfloe_c.a`, which Cargo builds beside the test.
pub(crate) fn library() -> PathBuf {
    // target/debug/deps/it-…
    let own = std::env::current_exe().expect("the test has a place");
    own.parent().expect("a folder").to_owned()
}

/// Runs a command that has to succeed.
pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// What a program is built with.
#[derive(Clone, Copy)]
enum Checked {
    /// With the compiler's checks of memory and of undefined behaviour.
    Yes,
    No,
}

/// Compiles a program, runs it and returns what it prints.
fn run(compiler: &str, source: &str, linked: &str, checked: Checked) -> String {
    run_with(compiler, source, linked, checked, |_| ())
}

/// Compiles a program, and runs it with arguments. Returns what it prints.
fn run_with(
    compiler: &str,
    source: &str,
    linked: &str,
    checked: Checked,
    arguments: impl FnOnce(&mut Command),
) -> String {
    let scratch = tempfile::tempdir().expect("a folder");
    let program = scratch.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]);
    command.arg(format!("-DEXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    command.arg(if compiler == "c++" { "-std=c++17" } else { "-std=c11" });
    if matches!(checked, Checked::Yes) {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg("-I").arg(folder().join("include")).arg(folder().join(source));
    match linked {
        "shared" => {
            // The name that it says it has, which is not that of the file.
            let place = scratch.path().join("libfloe.so.0");
            std::fs::copy(library().join("libfloe_c.so"), &place).expect("the library is there");
            std::os::unix::fs::symlink("libfloe.so.0", scratch.path().join("libfloe.so"))
                .expect("a link");
            command.arg("-L").arg(scratch.path()).arg("-lfloe");
        }
        _ => {
            command.arg(library().join("libfloe_c.a")).args(["-lm", "-ldl"]);
        }
    }
    done(command.arg("-o").arg(&program));
    let mut run = Command::new(&program);
    arguments(run.env("LD_LIBRARY_PATH", scratch.path()).env("TMPDIR", scratch.path()));
    String::from_utf8(done(&mut run).stdout).expect("text")
}

#[test]
fn everything_works_from_c() {
    let source = "tests/programs/everything.c";
    assert_eq!(run("cc", source, "shared", Checked::Yes), "done\n");
    assert_eq!(run("cc", source, "static", Checked::No), "done\n");
}

#[test]
fn the_cache_on_flash_works_from_c() {
    let source = "tests/programs/hybrid.c";
    assert_eq!(run("cc", source, "shared", Checked::Yes), "done\n");
}

#[test]
fn everything_works_from_cpp() {
    let source = "tests/programs/everything.cpp";
    assert_eq!(run("c++", source, "shared", Checked::Yes), "done\n");
}

#[test]
fn the_examples_print_what_they_say() {
    assert_eq!(
        run("cc", "examples/quick.c", "shared", Checked::Yes),
        "read: value\nkept: value\nhits: 2\n"
    );
    assert_eq!(
        run("c++", "examples/quick.cpp", "shared", Checked::Yes),
        "read: value\nkept: from the disk\nhits: 1\n"
    );
}

#[test]
fn the_example_of_flash_finds_what_it_inserted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cache");
    let say = || {
        run_with("cc", "examples/hybrid.c", "static", Checked::No, |command| {
            command.arg(&path);
        })
    };
    assert_eq!(say(), "inserted: in memory\nkey: there\nnone: absent\n");
    assert_eq!(say(), "found: value\nkey: there\nnone: absent\n");
}

#[test]
fn the_benchmark_of_reads_finds_all_values() {
    let said = run("cc", "bench/reads.c", "static", Checked::Yes);
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.starts_with("floe_read "), "{said}");
}

/// Where there is Go.
#[test]
fn the_example_in_go_runs() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("not run: there is no Go");
        return;
    }
    let scratch = tempfile::tempdir().expect("a folder");
    for name in ["libfloe.so", "libfloe.so.0"] {
        std::fs::copy(library().join("libfloe_c.so"), scratch.path().join(name)).expect("a copy");
    }
    let place = scratch.path().display();
    let output = done(
        Command::new("go")
            .args(["run", "."])
            .current_dir(folder().join("examples/go"))
            .env("CGO_CFLAGS", format!("-I{}", folder().join("include").display()))
            .env("CGO_LDFLAGS", format!("-L{place} -lfloe -Wl,-rpath,{place}"))
            .env("GOCACHE", scratch.path().join("cache"))
            .env("GOFLAGS", "-mod=mod"),
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "value true\n");
}

/// What programs that were linked before rely on.
#[test]
fn the_interface_is_the_one_that_was_published() {
    let listed = done(
        Command::new("nm")
            .args(["--dynamic", "--defined-only", "--format=posix"])
            .arg(library().join("libfloe_c.so")),
    );
    let text = String::from_utf8(listed.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    // Another crate of a build of the whole workspace has the C interface of crc-fast enabled.
    let mut symbols: Vec<&str> = names.filter(|name| !name.starts_with("crc_fast_")).collect();
    symbols.sort_unstable();
    let published = std::fs::read_to_string(folder().join("tests/published.txt")).expect("a list");
    assert_eq!(
        symbols.join("\n") + "\n",
        published,
        "symbols of the library and tests/published.txt: what is published may not go, and what \
         is new is added there"
    );
    let needed = done(Command::new("readelf").arg("-d").arg(library().join("libfloe_c.so")));
    let needed = String::from_utf8_lossy(&needed.stdout).into_owned();
    assert!(needed.contains("soname: [libfloe.so.0]"), "{needed}");
}

/// `make install-c` gives programs what pkg-config and CMake look for.
#[test]
fn it_is_installed_for_pkg_config_and_cmake() {
    let scratch = tempfile::tempdir().expect("a folder");
    let root = folder().ancestors().nth(2).expect("the project");
    done(
        Command::new(root.join("scripts/install-c"))
            .arg(library())
            .env("DESTDIR", scratch.path())
            .env("PREFIX", "/opt/floe"),
    );
    let prefix = scratch.path().join("opt/floe");
    let pkg_config = |flag: &str| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        command.env("PKG_CONFIG_SYSROOT_DIR", scratch.path());
        let output = done(command.args([flag, "floe"]));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    assert_eq!(pkg_config("--modversion"), env!("CARGO_PKG_VERSION"));
    let flags = [pkg_config("--cflags"), pkg_config("--libs")].join(" ");
    let program = scratch.path().join("quick");
    let mut command = Command::new("cc");
    command.arg(folder().join("examples/quick.c")).args(flags.split_whitespace());
    done(command.arg("-o").arg(&program));
    let output = done(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(output.stdout.starts_with(b"read: value\n"));

    let project = scratch.path().join("project");
    std::fs::create_dir(&project).expect("a folder");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(quick C)\nfind_package(floe {} REQUIRED)\n\
         add_executable(quick {})\ntarget_link_libraries(quick PRIVATE floe::floe)\n",
        env!("CARGO_PKG_VERSION"),
        folder().join("examples/quick.c").display()
    );
    std::fs::write(project.join("CMakeLists.txt"), lists).expect("written");
    let build = project.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build);
    done(configure.arg(format!("-Dfloe_DIR={}", prefix.join("lib/cmake/floe").display())));
    done(Command::new("cmake").arg("--build").arg(&build));
    let output = done(&mut Command::new(build.join("quick")));
    assert!(output.stdout.starts_with(b"read: value\n"));
}
