// The view layer: Preact with templates in place of JSX. Values in a template become text nodes and properties, never markup.

import { h, render } from "../vendor/preact.js";
import { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { signal } from "../vendor/preact-signals.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);

export { render, signal, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };
