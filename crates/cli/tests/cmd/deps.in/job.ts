import { z } from "npm:zod@3";
import type { A } from "a1";
import x from "loadsh";
