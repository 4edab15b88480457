"""A real browser: Debian's chromium, driven by selenium, with what it logs and asks for."""

import json
import shutil


def missing():
    """Why there is no browser here; empty where there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"no {program} here: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no selenium here: pip install -e '.[dev]'"
    return ""


class Browser:
    """A window of 1280 by 800."""

    def __init__(self):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for switch in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            "hide-scrollbars",
        ):
            options.add_argument(f"--{switch}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open(self, path, *, dark=False):
        """Open a file and wait until it says that it can be used."""
        from selenium.webdriver.support.ui import WebDriverWait

        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.errors()
        self.requests()
        self.driver.get(f"file://{path}")
        ready = "return document.body.dataset.ready === 'yes'"
        WebDriverWait(self.driver, 60, 0.02).until(lambda driver: driver.execute_script(ready))

    def run(self, script, *arguments):
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """What an element shows."""
        return self.driver.find_element("css selector", selector).text

    def find(self, selector):
        """An element."""
        return self.driver.find_element("css selector", selector)

    def click_node(self, name):
        """Click a node of the graph where it is drawn."""
        from selenium.webdriver import ActionChains

        x, y = self.run(
            "const v = dovetail.view, n = v.shown.byName.get(arguments[0]);"
            "v.cy.center(v.cy.getElementById('n' + n.number));"
            "const p = v.cy.getElementById('n' + n.number).renderedPosition(),"
            "      b = document.getElementById('canvas').getBoundingClientRect();"
            "return [p.x + b.left, p.y + b.top]",
            name,
        )
        chain = ActionChains(self.driver, duration=20)
        chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        chain.w3c_actions.pointer_action.click()
        chain.perform()

    def wait_for_frames(self):
        """Wait until the browser has drawn what was asked of it."""
        done = "const f = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(f))"
        for _ in range(3):
            self.driver.execute_async_script(done)

    def errors(self):
        """What the console has said since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """What has been asked for since the last time."""
        events = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        sent = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]

    def close(self):
        """End it."""
        self.driver.quit()
