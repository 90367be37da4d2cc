"""A headless Chromium, driven over its DevTools protocol through a pipe; needs nothing but Python."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find():
    """The browser's program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab of one browser. What its page complains of is in `complaints`."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory()
        there, self.write_end = os.pipe()
        self.read_end, back = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (there, back)]  # out of the way of 3 and 4

        def take_places():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en-US",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=take_places, pass_fds=(3, 4))
        for end in (there, back, *ends):
            os.close(end)
        self.number, self.buffer, self.session = 0, b"", None
        self.answers, self.complaints, self.received_bytes = {}, [], 0
        tab = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        os.close(self.write_end)  # the browser ends by that
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_end)
        self.profile.cleanup()

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while self.number not in self.answers:
            self.listen(end - time.monotonic())
            if time.monotonic() > end:
                raise TimeoutError(method)
        answer = self.answers.pop(self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def listen(self, seconds):
        """Takes what the browser says, for at most so many seconds."""
        if not select.select([self.read_end], [], [], max(0.0, seconds))[0]:
            return
        part = os.read(self.read_end, 1 << 20)
        if not part:
            raise ConnectionError("the browser has ended")
        *messages, self.buffer = (self.buffer + part).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.take(message["method"], message["params"])

    def take(self, event, parameters):
        if event == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append("dialog: " + parameters["message"])
            accept = {"id": 0, "method": "Page.handleJavaScriptDialog", "sessionId": self.session,
                      "params": {"accept": True}}
            os.write(self.write_end, json.dumps(accept).encode() + b"\0")
        elif event == "Network.dataReceived":
            self.received_bytes += parameters["dataLength"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href.startsWith('http')")

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.ask(expression):
            if time.monotonic() > end:
                shown = self.ask("document.body.innerText")[:3000]
                raise AssertionError(f"not within {seconds} s: {expression}\n{shown}")
            self.listen(0.05)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      text=text if kind == "keyDown" else "")

    def picture(self, path, whole=True):
        """The page as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
