//! A browser without a window, spoken to over pipes: Chromium's DevTools protocol, of which each
//! message is JSON and ends with a zero byte.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use floe_testkit::{PATIENCE, run, wait_until};
use serde_json::{Value, json};

/// The browser.
pub(crate) const PROGRAM: &str = "chromium";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: File,
    replies: Receiver<Value>,
    /// Console messages and exceptions so far.
    pub(crate) complaints: VecDeque<String>,
    session: String,
    last: u64,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [commands, replies] = ["commands", "replies"].map(|name| folder.path().join(name));
        run("mkfifo", &[commands.to_str().unwrap(), replies.to_str().unwrap()]);
        // The browser reads commands from descriptor 3 and writes replies to descriptor 4. A test
        // has no user to protect from pages, and root has no sandbox.
        let script = r#"exec "$0" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --user-data-dir="$1/profile" --remote-debugging-pipe about:blank \
            3<>"$1/commands" 4<>"$1/replies""#;
        let child = Command::new("sh")
            .args(["-c", script, PROGRAM, folder.path().to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let commands = OpenOptions::new().read(true).write(true).open(commands).unwrap();
        let mut browser = Self {
            child,
            commands,
            replies: receive(&replies),
            complaints: VecDeque::new(),
            session: String::new(),
            last: 0,
            _folder: folder,
        };
        let page = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let target = &page["targetId"];
        let attached =
            browser.ask("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.ask(domain, &json!({}));
        }
        browser
    }

    /// Carries out a command; its result.
    pub(crate) fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let reply = self.replies.recv_timeout(PATIENCE).expect("the browser answers");
            if reply["id"] == self.last {
                assert!(reply.get("error").is_none(), "{method}: {reply}");
                return reply["result"].clone();
            }
            self.note(&reply);
        }
    }

    fn note(&mut self, event: &Value) {
        let told = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        if told.iter().any(|method| event["method"] == *method) {
            self.complaints.push_back(event["params"].to_string());
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.ask("Page.navigate", &json!({"url": url}));
    }

    /// The value of an expression on the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true});
        let result = self.ask("Runtime.evaluate", &parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        wait_until(expression, || self.value(expression) == true);
    }

    /// Sets the width in CSS pixels, and the theme that the user prefers.
    pub(crate) fn show_as(&mut self, width: u32, theme: &str) {
        let size = json!({
            "width": width, "height": width * 3 / 4, "deviceScaleFactor": 1, "mobile": false
        });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        let feature = json!({"name": "prefers-color-scheme", "value": theme});
        self.ask("Emulation.setEmulatedMedia", &json!({"features": [feature]}));
        // Two frames: what watches sizes draws in the first.
        let drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))";
        let wait = json!({"expression": drawn, "awaitPromise": true});
        self.ask("Runtime.evaluate", &wait);
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str) {
        // Without its number Tab moves no focus, Escape closes no dialog and Enter sends no form.
        let number = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": number});
            if key == "Enter" {
                event["text"] = "\r".into(); // without it no form is sent
            }
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    /// Moves the focus by Tab from the page's first link on. Returns the number of elements that it
    /// reaches, each below or to the right of the one before, and fails where one is not.
    pub(crate) fn walk_by_tab(&mut self) -> u64 {
        self.value("var before = null; document.querySelector('a').focus()");
        for reached in 0..200 {
            self.press("Tab");
            // Undefined at the end; otherwise the fault.
            let fault = self.value(
                "(() => {
                    const it = document.activeElement;
                    if (it === document.body) return undefined;
                    const { left, top, bottom } = it.getBoundingClientRect();
                    const now = { it, left, top: top + scrollY, bottom: bottom + scrollY };
                    const [last, name] = [before, it.outerHTML.slice(0, 80)];
                    before = now;
                    if (!last) return '';
                    if (now.bottom <= last.top) return `${name} is above the one before`;
                    const beside = now.top < last.bottom && last.top < now.bottom;
                    return beside && now.left <= last.left ? `${name} is to the left` : '';
                })()",
            );
            match fault.as_str() {
                None => return reached,
                Some(fault) => assert_eq!(fault, ""),
            }
        }
        panic!("Tab does not come to an end");
    }

    /// The controls and tables that have no name for a screen reader.
    pub(crate) fn nameless(&mut self) -> Vec<String> {
        let tree = self.ask("Accessibility.getFullAXTree", &json!({}));
        let wanted = |node: &&Value| {
            let focusable = |it: &Value| it["name"] == "focusable" && it["value"]["value"] == true;
            let role = node["role"]["value"].as_str().unwrap_or("");
            let controls =
                node["properties"].as_array().is_some_and(|all| all.iter().any(focusable));
            node["ignored"] == false
                && (role == "table" || controls && role != "RootWebArea" && role != "generic")
                && node["name"]["value"].as_str().is_none_or(str::is_empty)
        };
        tree["nodes"].as_array().unwrap().iter().filter(wanted).map(Value::to_string).collect()
    }

    /// The elements that reach beyond the section that they are in, or the page.
    pub(crate) fn overflowing(&mut self) -> Value {
        self.value(
            "[...document.querySelectorAll('section *')].filter(it => {
                const { left, right, width } = it.getBoundingClientRect();
                const around = it.closest('section').getBoundingClientRect();
                return width > 0 && (right > around.right || left < around.left);
            }).map(it => it.outerHTML.slice(0, 80))",
        )
    }

    /// An image of the whole page, in base64.
    pub(crate) fn screenshot(&mut self) -> String {
        let whole = json!({"format": "png", "captureBeyondViewport": true});
        let shot = self.ask("Page.captureScreenshot", &whole);
        shot["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Reads messages in a thread, until the browser has gone.
fn receive(from: &Path) -> Receiver<Value> {
    // Opened for both, the pipe has a writer already.
    let pipe = OpenOptions::new().read(true).write(true).open(from).unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let messages = BufReader::new(pipe).split(0).map_while(Result::ok);
        for message in messages {
            let message = serde_json::from_slice(&message).expect("the browser sends JSON");
            if tell.send(message).is_err() {
                return;
            }
        }
    });
    told
}
